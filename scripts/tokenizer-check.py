#!/usr/bin/env python3
"""Compares the ids of `trireme tokenizer encode` with those of the Python library, for tokenizers as people have them, on awkward strings. Prints a Markdown
table: the file, its kind, its tokens, and how many strings have equal ids, or the refusal. Exits with 1 if any string differs.

  pip install tokenizers sentencepiece
  scripts/tokenizer-check.py gpt2/tokenizer.json models/llama2/         files, or folders with a tokenizer.json or tokenizer.model
  scripts/tokenizer-check.py --strings 200 --show 5 FILE...             fewer strings; shows the first five that differ

The strings are the same in each call, apart from those that contain the tokenizer's own special tokens. Their characters are assigned in Unicode 3.2 or are
emoji, and their general category is what it was then, because the rest depends on the version of the libraries' tables. A *.model is compared with the library
sentencepiece, a tokenizer.json with tokenizers.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

TABLE = unicodedata.ucd_3_2_0
TEXTS = ["It is a truth universally acknowledged", "don't WE'LL they're I'm", "Größenordnung naïve façade İstanbul", "Быть или не быть", "ἦν ὁ λόγος",
         "天地玄黄,宇宙洪荒。", "いろはにほへと カタカナ", "모든 인간은 자유", "في البدء كان الكلمة", "בראשית ברא", "सभी मनुष्यों", "ทุกคนเกิดมา", "tiếng Việt",
         "def f(x, *, y=0):\n    return x ** 2  # square\n", "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b;\r\n}", "{\"key\": [1, 2.5e-3, null]}",
         "https://example.org/a?b=c&d=%20#e", "<div class=\"a\">x</div>", "0xDEADBEEF 1e-10 3.14159 1,000,000", "x\u00b2 \u00bd \u2167 \u2460 \ufb01 \uff21"]
EMOJI = ["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA", "1\ufe0f\u20e3"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x0c", "\x85", "\u200b", "\ufeff", "\u1680",
          "\u2581", "\u2581\u2581"]
ODD = ["\x01", "\x7f", "\x1f", "\ufffd", "\u200d", "\u200c", "\u00ad", "\u2060", "\ue000", "\U000f0000", "##", "</w>", "<0x41>", "[UNK]", "[CLS]", "<s>", "</s>",
       "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<mask>", "Ġthe", "Ċ"]


def characters():
    """The characters of each general category, without those that have no meaning of their own."""
    found = {}
    for code in range(0x20, 0x30000):
        kind = TABLE.category(chr(code))
        if kind not in ("Cn", "Cs", "Co") and kind == unicodedata.category(chr(code)):
            found.setdefault(kind, []).append(chr(code))
    return found


def piece(rng, kinds, special):
    kind = rng.randrange(12)
    if kind <= 2:
        text = rng.choice(TEXTS)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randint(1, 24)]
    if kind == 3:
        return rng.choice(EMOJI) * rng.randint(1, 3)
    if kind == 4:
        return rng.choice(SPACES) * rng.choice([1, 1, 2, 5])
    if kind == 5:
        return rng.choice(ODD)
    if kind == 6 and special:
        return rng.choice(["", " ", "\n", "a", "_"]) + rng.choice(special) + rng.choice(["", " ", "  ", "\n", "b", "1"])
    if kind == 7:
        return rng.choice("aeoAnçがあ가") + "".join(rng.choice(kinds["Mn"]) for _ in range(rng.randint(1, 3)))
    if kind == 8:
        return "".join(rng.choice("0123456789٣५") for _ in range(rng.choice([1, 2, 3, 4, 7])))
    if kind == 9:
        return "".join(rng.choice(kinds[rng.choice(sorted(kinds))]) for _ in range(rng.randint(1, 4)))
    if kind == 10:
        return rng.choice("!?.,;:-_=+*/\\|()[]{}<>@#$%^&~`\"'") * rng.randint(1, 4)
    return rng.choice(["a", "é", " ", "漢", "1", "-", "\n", "ab ", "\U0001F600"]) * rng.choice([1, 17, 60, 300])


def strings(count, special):
    rng, kinds = random.Random(53), characters()
    fixed = ["", " ", "\n", *TEXTS, *EMOJI, *SPACES, *ODD, *special[:100]]
    made = fixed[:count]
    while len(made) < count:
        made.append("".join(piece(rng, kinds, special) + rng.choice(["", "", " "]) for _ in range(rng.randint(1, 6))))
    return made


def reference(path):
    """What the library makes of a string, the special tokens, the kind and size of the tokenizer, and whether two lists of ids are equally good."""
    if path.suffix == ".model":
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

        def tied(mine, theirs):  # which of two segmentations of equal score comes out depends on the version of the library
            return abs(sum(map(processor.get_score, mine)) - sum(map(processor.get_score, theirs))) < 0.01 and processor.decode(mine) == processor.decode(theirs)
        return processor.encode, [], "SentencePiece", processor.get_piece_size(), tied
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    kind = type(tokenizer.model).__name__
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, special, kind, tokenizer.get_vocab_size(), lambda mine, theirs: False


def encode(binary, path, texts):
    """Ids of each text, or the refusal."""
    with tempfile.TemporaryDirectory() as directory:
        names = []
        for i, text in enumerate(texts):
            names.append(str(i))
            pathlib.Path(directory, str(i)).write_bytes(text.encode())
        done = subprocess.run([binary, "tokenizer", "encode", "--json", "--tokenizer", str(path), *names], cwd=directory, capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        return None, f"{done.returncode}: {done.stderr.strip()}"
    return [json.loads(line) for line in done.stdout.splitlines()], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR")
    parser.add_argument("--trireme", default=str(pathlib.Path(__file__).resolve().parent.parent / "build/trireme"))
    parser.add_argument("--strings", type=int, default=2000)
    parser.add_argument("--show", type=int, default=0, help="print this many strings that differ, for each file")
    arguments = parser.parse_args()
    differs = False
    print("| file | kind | tokens | strings with equal ids |\n|---|---|---|---|")
    for given in arguments.paths:
        path = pathlib.Path(given).resolve()
        file = path
        if path.is_dir():
            file = next((path / name for name in ("tokenizer.json", "tokenizer.model") if (path / name).exists()), path)
        try:
            ids_of, special, kind, tokens, tied = reference(file)
        except Exception as error:  # the library refuses too; what it raises has no class of its own
            ids_of, special, kind, tokens, tied = None, [], "refused by the library: " + str(error).replace("\n", " ")[:60], "", None
        texts = strings(arguments.strings, special)
        found, refusal = encode(arguments.trireme, path, texts)
        if found is None or ids_of is None:
            print(f"| {given} | {kind} | {tokens} | {refusal.replace('|', chr(92) + '|') or 'accepted'} |", flush=True)
            continue
        other = [(text, mine, theirs) for text, mine in zip(texts, found) if mine != (theirs := ids_of(text))]
        wrong = [(text, mine, theirs) for text, mine, theirs in other if not tied(mine, theirs)]
        ties = f", {len(other) - len(wrong)} of them ties" if len(other) > len(wrong) else ""
        differs = differs or bool(wrong)
        print(f"| {given} | {kind} | {tokens} | {len(texts) - len(wrong)} of {len(texts)}{ties} |", flush=True)
        for text, mine, theirs in wrong[:arguments.show]:
            print(f"  {json.dumps(text)}\n    trireme  {mine}\n    library  {theirs}", file=sys.stderr)
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
