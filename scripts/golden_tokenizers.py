#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: small tokenizers, 10,000 lines of awkward text, and what Hugging Face `tokenizers` and SentencePiece make of it.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 && python scripts/golden_tokenizers.py [byte_fallback]

With `byte_fallback` only the tokenizers of that kind are written, and SentencePiece is not needed; with `parts` only parts.json.

parts.json {"base": a tokenizer.json, "cases": [{"set": its keys that are replaced, "ids": {text: ids}, "texts": {text: what decoding the ids gives}}]} has
each normalizer, pre_tokenizer, model, decoder and flag of an added token by itself.

Files: lines.json {"lines": [...]}; NAME.json or NAME.model, a tokenizer; NAME.ids.json {"first": ids of each of the first lines,
"tied": lines that do not count (see ties), "odd": ids and text of each of ODD, "ids": a digest for
each hundred lines, "texts": the same of the decoded text}. Digests are 64-bit FNV-1a, of ids as four bytes each and 0xFFFFFFFF behind
each line, of texts as UTF-8 with a zero byte behind each. All characters are assigned in Unicode 3.2 or are emoji of at most Unicode 9, so that the
tables of the libraries compared agree.
"""

import io
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizers"
LINES = 10000
FULL = 400  # lines whose ids are written one by one
TABLE = unicodedata.ucd_3_2_0

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Several regexes in turn, classes of punctuation and ranges of characters, as DeepSeek has them.
STEPS = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
         r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

PROSE = """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. However little
known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding
families, that he is considered as the rightful property of some one or other of their daughters. "My dear Mr. Bennet," said his lady to him one day,
"have you heard that Netherfield Park is let at last?" Mr. Bennet replied that he had not. "But it is," returned she; "for Mrs. Long has just been here,
and she told me all about it." You'll see: we've said it's hers, they're his, I'm sure I'd go, didn't I?"""
FOREIGN = ["Größenordnungen und Straßenübergänge, naïve façade à la carte, señor mañana, Łódź źródło, İstanbul'da ığdır çiçeği",
           "Быть или не быть, вот в чём вопрос; съешь ещё этих мягких французских булок", "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν",
           "天地玄黄,宇宙洪荒。日月盈昃,辰宿列张。寒来暑往,秋收冬藏。", "いろはにほへと ちりぬるを カタカナとひらがな、漢字。", "모든 인간은 태어날 때부터 자유로우며",
           "في البدء كان الكلمة والكلمة كان عند الله", "בראשית ברא אלהים את השמים ואת הארץ", "सभी मनुष्यों को गौरव और अधिकारों", "ทุกคนเกิดมามีอิสระเสรี",
           "Xin chào thế giới, tiếng Việt có dấu: ệ ữ ặ", "ÁÉÍÓÚ áéíóú ñ ç ſs ﬁn ǅ ª º ² ½ Ⅷ ①"]
CODE = ["def f(x, *, y=0):\n    return x ** 2 + y  # square\n", "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n}\n", "SELECT * FROM t WHERE id >= 1000;",
        "{\"key\": [1, 2.5e-3, null], \"other\": {}}", "if (!ptr || ptr->next == nullptr) return -1;", "#include <vector>\r\n\r\nint main() {}\r\n",
        "https://example.org/a/b?c=d&e=%20#f", "\\begin{equation} \\alpha_{i}^{2} \\end{equation}", "<div class=\"a\">text</div>", "0xDEADBEEF 1e-10 3.14159 1,000,000"]
EMOJI = ["\U0001F600",
         "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA",
         "\U0001F3F4", "\u261d\U0001F3FF",
         "\U0001F469\u200d\U0001F52C", "1\ufe0f\u20e3", "\U0001F680"]
MARKS = [chr(c) for c in range(0x300, 0x350) if TABLE.category(chr(c)) == "Mn"] + [
    "\u0483", "\u05b0", "\u064b", "\u064e", "\u093c", "\u0e31", "\u3099", "\u20dd", "\u0345"]
SPACES = [" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x85", "\u200b", "\ufeff", "\u180e", "\u1680"]
SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>",
           "<tool_call>", "<tool_call>x", "<|endof", "<||>", "ti\u1ebfng+", "tie\u0302\u0301ng+", "</s>", "<unk>", "<s>"]
BLOCKS = [(0x20, 0x7F), (0xA1, 0x180), (0x180, 0x250), (0x370, 0x400), (0x400, 0x500),
          (0x5D0, 0x5EB), (0x621, 0x64B), (0x660, 0x66A), (0x900, 0x970), (0xE01, 0xE30),
          (0x1100, 0x1200), (0x1E00, 0x1F00), (0x1F00, 0x2000),
          (0x2000, 0x2070), (0x2070, 0x20A0), (0x2100, 0x2200), (0x2460, 0x2500), (0x3041, 0x3100), (0x4E00, 0x9FA6),
          (0xAC00, 0xD7A4), (0xF900, 0xFA2E), (0xFB00, 0xFB50), (0xFF01, 0xFFA0), (0x10330, 0x1034B), (0x1D400, 0x1D456), (0x20000, 0x20100)]


def characters():
    known = []
    for begin, end in BLOCKS:
        known.append([c for c in map(chr, range(begin, end)) if TABLE.category(c) not in ("Cn", "Cs", "Co")])
    return known


CHARACTERS = characters()
WORDS = PROSE.split()


def pieces(rng):
    """One element of a line."""
    kind = rng.randrange(16)
    if kind <= 4:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))
    if kind == 5:
        text = rng.choice(FOREIGN)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randint(1, 14)]
    if kind == 6:
        return rng.choice(CODE)[rng.randrange(4):]
    if kind == 7:
        return rng.choice(EMOJI) * rng.randint(1, 2)
    if kind == 8:
        return "".join(rng.choice("aeoAnçkgあは가क" "\u0061\u1EA1") + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3)))
    if kind == 9:
        return rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 4, 7, 8])
    if kind == 10:
        return " " * rng.choice([1, 2, 3, 4, 5, 8, 16])
    if kind == 11:
        return rng.choice(["", " "]) + "".join(rng.choice("0123456789") for _ in range(rng.choice([1, 2, 3, 4, 5, 9])))
    if kind == 12:
        word = rng.choice(["I", "you", "THEY", "We", "it", "DON", "don", "Ça", "L"]) + rng.choice(["'", "'", "\u2019"])
        word += rng.choice(["s", "S", "t", "RE", "Ve", "m", "LL", "d", "D", "\u017f"])
        return word
    if kind == 13:
        return rng.choice(SPECIAL)
    if kind == 14:
        block = rng.choice(CHARACTERS)
        return "".join(rng.choice(block) for _ in range(rng.randint(1, 6)))
    return rng.choice("!?.,;:-_=+*/\\|()[]{}<>@#$%^&~`\"'") * rng.randint(1, 4)


def make_lines(seed, count):
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        line = ""
        for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 5])):
            line += pieces(rng) + rng.choice(["", "", " ", "\n" if rng.random() < 0.3 else ""])
        lines.append(line)
    # Long pieces take another path through the merges than words, and longer ones through the regexes.
    lines[7] = "ab" * 300 + " " * 500 + "x" + "\n" * 300 + "é" * 200 + "1" * 100
    lines[8] = "".join(rng.choice(CHARACTERS[18]) for _ in range(150))
    lines[9] = ""
    lines[10] = "the" * 100
    return lines


def fnv(data, state=0xCBF29CE484222325):
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state


def write(name, lines, encode, decode, tied=frozenset(), odd=()):
    ids = [encode(line) for line in lines]
    texts = [decode(row) for row in ids]
    id_digests, text_digests = [], []
    for begin in range(0, len(lines), 100):
        some = [row for row in range(begin, begin + 100) if row not in tied]
        id_digests.append("%016x" % fnv(b"".join(b"".join(i.to_bytes(4, "little") for i in ids[row]) + b"\xff\xff\xff\xff" for row in some)))
        text_digests.append("%016x" % fnv(b"".join(texts[row].encode() + b"\0" for row in some)))
    with open(OUT / f"{name}.ids.json", "w") as out:
        out.write('{"first": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids[:FULL]) + "],\n")
        out.write('"tied": ' + json.dumps(sorted(tied)) + ",\n")
        if odd:
            out.write('"odd": [\n' + ",\n".join(json.dumps(one, separators=(",", ":")) for one in odd) + "],\n")
        out.write('"ids": ' + json.dumps(id_digests) + ',\n"texts": ' + json.dumps(text_digests) + "}\n")
    return texts


def byte_pair(name, lines, corpus, vocab_size, pre_tokenizer, normalizer=None, added=(), ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    (OUT / f"{name}.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    # Read again: the file is what counts.
    tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
    texts = write(name, lines, lambda line: tokenizer.encode(line, add_special_tokens=False).ids,
                  lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    expected = [unicodedata.normalize("NFC", line) for line in lines] if normalizer else lines
    if "prefix" not in name and [text for text, line in zip(texts, expected) if text != line]:
        print(f"{name}: decoding is not what was encoded", file=sys.stderr)


# Text and sequences of bytes that BPE with byte_fallback treats in its own ways.
ODD = ["", " ", "  ", "\u2581", " \u2581 a\u2581b", "\u2581\u2581the", "a" * 600, " " * 600, "the " * 150, "\u6f22" * 100, "\n\n\n\t\t\x00\x01\x1f\x7f\x80\x9f",
       "<0x41><0x0A>", "<s>the</s> the</s>the <unk>", "</s>", " </s> ", "the<tool_call>x <tool_call>", "<tool_call>", "a tool", "the a tool a  tool", "\U0001F600\U0001F468\u200d\U0001F469",
       "e\u0301\u00e9\ufeff\ufffd", "it is\u00a0a\u3000truth", "x\u2581", "\n the\n\u2581the"]


def byte_fallback(name, lines, corpus, vocab_size, normalizer, pre_tokenizer, decoder, added=(), tokens=(), train_words=True, ignore_merges=False):
    model = models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>", ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=train_words)
    trained = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=trained, limit_alphabet=90, show_progress=False))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    file = json.loads(tokenizer.to_str())
    # As in converted models, the tokens of bytes are in the vocabulary only.
    file["added_tokens"] = [token for token in file["added_tokens"] if not token["content"].startswith("<0x")]
    (OUT / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
    encode, decode = (lambda line: tokenizer.encode(line, add_special_tokens=False).ids), (lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    # Bytes that are no UTF-8, in tokens: a run of them, an unfinished character, one that another token divides, one between two whole ones, a surrogate.
    byte = [tokenizer.token_to_id(f"<0x{value:02X}>") for value in range(256)]
    the = encode("the")
    runs = [[byte[0xFF]], [byte[0xF0], byte[0x9F], byte[0x98]], [byte[0xC3], *the, byte[0xA9]], [byte[0x41], byte[0xC3], byte[0xC3], byte[0xA9], *the],
            [byte[0xED], byte[0xA0], byte[0x80]], [byte[0xE2], byte[0x96], byte[0x81]], [byte[0x20], byte[0x20]], [2, byte[0x20], *the], [*the, *the], [0, 1, 2]]
    odd = [{"text": text, "ids": encode(text), "decoded": decode(encode(text))} for text in ODD]
    odd += [{"ids": ids, "decoded": decode(ids)} for ids in runs]
    write(name, lines, encode, decode, odd=odd)


def byte_fallbacks(lines, corpus):
    mark, tool = "\u2581", AddedToken("<tool_call>", special=False)
    replace, prepend = normalizers.Replace(" ", mark), normalizers.Prepend(mark)
    plain = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    stripped = decoders.Sequence([*plain, decoders.Strip(" ", 1, 0)])
    byte_fallback("llama2", lines, corpus, 900, normalizers.Sequence([prepend, replace]), None, stripped, [tool, AddedToken("a tool", special=False)])
    byte_fallback("mistral", lines, corpus, 800, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), stripped,
                  [AddedToken("<tool_call>", special=False, normalized=False)], train_words=False)
    byte_fallback("gemma", lines, corpus, 800, replace, pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence(plain), [tool],
                  ["\n", "\n\n", "\t", "\x01", "\x7f", mark * 2, mark * 4])
    byte_fallback("metaspace", lines, corpus, 700, None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True), stripped, [tool], train_words=False)


def special(*contents):
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def split(regex):
    return pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False)


def sentence_piece(name, lines, corpus, **options):
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, minloglevel=2, num_threads=1, **options)
    (OUT / f"{name}.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write(name, lines, processor.encode, processor.decode, ties(processor, lines) if options["model_type"] == "unigram" else frozenset())


def ties(processor, lines):
    """Lines with two segmentations of equal score: which of them comes out depends on the rounding of sums, and so on the library's version."""
    found = set()
    for row, line in enumerate(lines):
        best = [sum(map(processor.get_score, ids)) for ids in processor.nbest_encode(line, nbest_size=2)]
        if len(best) > 1 and abs(best[0] - best[1]) < 0.01:
            found.add(row)
    return found


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


def added_token(number, content, **flags):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content, **plain, **flags}


def small_tokenizer(dead=()):
    vocabulary = {}
    for byte, letter in byte_alphabet().items():
        if byte not in dead:
            vocabulary[letter] = len(vocabulary)
    vocabulary["th"] = len(vocabulary)
    vocabulary["the"] = len(vocabulary)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added_token(len(vocabulary), "<|end|>")], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "vocab": vocabulary, "merges": ["t h", "th e"]}}


def part_cases():
    """Keys that replace those of the small tokenizer, and texts."""
    flagged = ["the<|end|>the", "the  <|end|>\n\u00a0 the", "a<|end|>b", " <|end|> <|end|> ", "the_<|end|>", "the <|end|>.", "\u00e9<|end|>", "<|end|><|end|>x",
               "<|end|>     x", "a  b<|end|>  ", "\u200d<|end|>\u0301", ""]
    for flags in ({"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"single_word": True, "rstrip": True},
                  {"rstrip": True, "normalized": True}):
        yield {"added_tokens": [added_token(258, "<|end|>", **flags), added_token(259, "  ", special=False)]}, flagged
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern in ({"Regex": "h"}, {"String": "t"}, {"Regex": "[the]"}, {"Regex": " ?\\p{L}+|\\w"}):
                split_at = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
                yield {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split_at, byte_level]}}, ["thexthhe", "the  thethxtthe", "x\u00b2_ the", "", " "]
    for part in ({"type": "Punctuation", "behavior": "Removed"}, {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
                 {"type": "CharDelimiterSplit", "delimiter": "|"}, {"type": "Digits", "individual_digits": False}, {"type": "BertPreTokenizer"}):
        for steps in ([part, byte_level], [part, {"type": "Split", "pattern": {"String": "h"}, "behavior": "Removed", "invert": False}, byte_level]):
            yield {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}, ["the,the|the!!", " the\u2003the_x\u200dthe!?", "the12\u00bdthe\u00bfx\u203fthe"]
    for part in ({"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": False},
                 {"type": "Strip", "strip_left": False, "strip_right": True}, {"type": "StripAccents"}, {"type": "Prepend", "prepend": "th"},
                 {"type": "Replace", "pattern": {"String": "."}, "content": "h"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
                 {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
                 {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                 {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": True}):
        for flags in ({}, {"normalized": True}):
            yield ({"normalizer": part, "added_tokens": [added_token(258, "<|end|>"), added_token(259, "\u0419NDE", special=False, **flags)]},
                   ["THE \ufb01 \u00e9\u0301", "  the t..e \u0419NDE \u0439nde \u0418NDE", "e the\t\n", "<|end|> the<|end|>", "\u0130\u03a3 \u6f22the\u00ad\x01\u200bx", ""])
    dead = [0xC0, 0xC1, *range(0xF5, 0x100)]
    yield {key: small_tokenizer(dead)[key] for key in ("model", "added_tokens")}, ["the caf\u00e9 \U0001F600<|end|>"]
    yield {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
           "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}}, ["the cat the", "a"]

    words = ["the the, thethe unthethexy \u6f22the zzz", "the" * 40, "<|end|>the <|end|>the", "The t\u00e9h", "", "  ", "a\u2581the \u2581the", "xyxy the \U0001F600\U0001F600 th\u00e9"]
    word_piece = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 12,
                  "vocab": {token: i for i, token in enumerate(["[UNK]", "the", "un", "##the", "##x", "##y", ",", "t", "##h", "\u6f22"])}}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    for cleanup in (True, False):
        yield {"model": word_piece, "normalizer": bert, "pre_tokenizer": {"type": "BertPreTokenizer"}, "added_tokens": [added_token(10, "<|end|>")],
               "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": cleanup}}, words
    level = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "the": 1, ",": 2, "zzz": 3}}
    yield {"model": level, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [added_token(4, "<|end|>")], "decoder": None}, words
    scores = [["<unk>", 0.0], ["\u2581", -2.0], ["\u2581the", -3.5], ["the", -4.0], ["t", -5.0], ["h", -5.0], ["e", -5.0], ["th", -6.0], ["un", -4.5], ["x", -7.0], ["xy", -8.0],
              [",", -3.0], ["\u2581the\u2581the", -6.5], ["z", -5.5], ["zz", -11.0]]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    for scheme in ("always", "first", "never"):
        for cuts in (True, False):
            space = {**metaspace, "prepend_scheme": scheme, "split": cuts}
            for before in ([], [{"type": "WhitespaceSplit"}]):
                yield {"model": {"type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": False}, "added_tokens": [added_token(len(scores), "<|end|>")],
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, space]}, "decoder": space}, words
    byte_tokens = [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    yield {"model": {"type": "Unigram", "unk_id": 0, "vocab": scores + byte_tokens, "byte_fallback": True}, "pre_tokenizer": metaspace,
           "added_tokens": [added_token(len(scores) + 256, "<|end|>")],
           "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}}, words
    letters = ["t", "h", "e", "th", "the", "x", "y", "u", "n", "a", "z", ",", "[UNK]", "xy"]
    for fuses in (True, False):
        for unknown in ("[UNK]", None):
            yield {"model": {"type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": fuses,
                             "byte_fallback": False, "vocab": {token: i for i, token in enumerate(letters)}, "merges": ["t h", "th e", "x y"]},
                   "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [added_token(len(letters), "<|end|>")], "decoder": None}, words
    marked = ["t", "##h", "##e", "th", "the", "##t", "[UNK]", "x</w>", "##e</w>", "the</w>", "a</w>", "##the</w>", "##th", "##the"]
    yield {"model": {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", "fuse_unk": False,
                     "byte_fallback": False, "vocab": {token: i for i, token in enumerate(marked)},
                     "merges": ["t ##h", "th ##e", "th ##e</w>", "##t ##h", "##th ##e", "##th ##e</w>"]},
           "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [added_token(len(marked), "<|end|>")], "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, words
    clip = {letter: byte for byte, letter in byte_alphabet().items()}
    clip.update({letter + "</w>": 256 + byte for byte, letter in byte_alphabet().items()})
    clip.update({"th": 512, "the</w>": 513})
    yield {"model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "</w>", "fuse_unk": False,
                     "byte_fallback": False, "vocab": clip, "merges": ["t h", "th e</w>"]},
           "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "'s|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}, "behavior": "Removed",
                                                                    "invert": True}, byte_level]}, "added_tokens": [added_token(514, "<|end|>")]}, words


def parts():
    cases = []
    for keys, texts in part_cases():
        file = {**small_tokenizer(), **keys}
        tokenizer = Tokenizer.from_str(json.dumps(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in texts}
        cases.append({"set": keys, "ids": ids, "texts": {text: tokenizer.decode(ids[text], skip_special_tokens=False) for text in texts}})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (OUT / "parts.json").write_text('{"base": ' + json.dumps(small_tokenizer(), separators=(",", ":")) + ',\n"cases": [\n' + lines + "]}\n")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    parts()
    if sys.argv[1:] == ["parts"]:
        return
    lines = make_lines(6, LINES)
    corpus = make_lines(60, 4000) + [PROSE] * 20 + FOREIGN * 10 + CODE * 10
    byte_fallbacks(lines, corpus)
    if sys.argv[1:] == ["byte_fallback"]:
        return
    (OUT / "lines.json").write_text('{"lines": [\n' + ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "]}\n", encoding="utf-8")

    tool = [AddedToken("<tool_call>", special=False), AddedToken("<tool_call>x", special=False), AddedToken("tie\u0302\u0301ng+", special=False)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_pair("gpt2", lines, corpus, 3000, pre_tokenizers.ByteLevel(add_prefix_space=False), added=special("<|endoftext|>"))
    byte_pair("gpt2_prefix", lines, corpus, 400, pre_tokenizers.ByteLevel(add_prefix_space=True), added=special("<|endoftext|>") + tool)
    byte_pair("llama3", lines, corpus, 3000, pre_tokenizers.Sequence([split(LLAMA3), byte_level]), ignore_merges=True,
              added=special("<|begin_of_text|>", "<|end_of_text|>"))
    byte_pair("qwen2", lines, corpus, 3000, pre_tokenizers.Sequence([split(QWEN2), byte_level]), normalizers.NFC(),
              special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + tool)
    byte_pair("steps", lines, corpus, 800, pre_tokenizers.Sequence([*map(split, STEPS), pre_tokenizers.Digits(individual_digits=True), byte_level]),
              added=special("<|endoftext|>"))

    corpus = [part for text in corpus for part in text.split("\n") if part and "\0" not in part]
    llama = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True, split_digits=True,
                 allow_whitespace_only_pieces=True)
    sentence_piece("bpe_bytes", lines, corpus, model_type="bpe", vocab_size=1200, character_coverage=0.99, **llama)
    sentence_piece("bpe", lines, corpus, model_type="bpe", vocab_size=800, character_coverage=0.98, user_defined_symbols=["<tool_call>"])
    sentence_piece("unigram_bytes", lines, corpus, model_type="unigram", vocab_size=1000, character_coverage=0.98, **llama)
    sentence_piece("unigram", lines, corpus, model_type="unigram", vocab_size=800, character_coverage=0.98, normalization_rule_name="nfkc")


if __name__ == "__main__":
    main()
