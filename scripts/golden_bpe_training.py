#!/usr/bin/env python3
"""Regenerates the golden tokenizers of tests/golden/bpe_training with the trainer of Hugging Face tokenizers.

    python3 scripts/golden_bpe_training.py [output directory, default tests/golden/bpe_training]

Needs the Python package tokenizers (0.20 or later: merges as pairs). Writes the texts, cases.json, which says what each tokenizer was trained on, and the
tokenizers as the package saves them. The regular expressions are written out a second time here, from the files of the models they are named after.
"""

import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"
CASES = [
    {"name": "gpt2", "text": "mixed.txt", "pattern": "gpt2", "vocab_size": 700, "special": [END]},
    {"name": "llama3", "text": "mixed.txt", "pattern": "llama3", "vocab_size": 700, "special": [END]},
    {"name": "qwen2", "text": "mixed.txt", "pattern": "qwen2", "vocab_size": 700, "special": [END, "<|im_start|>", "<|im_end|>", "<é \"\\>"]},
    {"name": "no_special", "text": "mixed.txt", "pattern": "llama3", "vocab_size": 300, "special": []},
    {"name": "no_merges", "text": "mixed.txt", "pattern": "llama3", "vocab_size": 257, "special": [END]},
    {"name": "ties", "text": "ties.txt", "pattern": "gpt2", "vocab_size": 600, "special": [END]},
    {"name": "exhausted", "text": "few.txt", "pattern": "llama3", "vocab_size": 5000, "special": [END]},
]


def mixed(rng: random.Random) -> str:
    """Prose of invented words with a long tail, and what else stands in texts that models read."""
    syllables = ["ba", "the", "ing", "er", "é", "e\u0301", "ño", "ka", "st", "ou", "ß", "m", "tion", "lo", "wa"]
    scripts = [syllables, list("αβγδεζηθικλ"), list("абвгдежзик"), list("漢字仮名交文日本"), list("سلامعربيكت"), list("שלוםעברית"), ["कि", "ता", "ब"]]
    words = ["".join(rng.choice(scripts[min(int(rng.expovariate(1.2)), 6)]) for _ in range(rng.randint(1, 4))) for _ in range(600)]
    extras = ["don't", "WE'LL", "I'm", "they'Ve", "12345", "3.14", "2024-05-17", "x += 1;", "\tif (a[i] != b) {\n", "    return f(x);\n", "👍🏽", "👩‍👩‍👧",
              "e\u0327\u0301", "\u00a0", "\u2003", "\r\n", "\n\n\n", "        ", "<|endoftext|>", "http://a.example/?q=1&r=2", "--", "...", "“”", "½", "٣٤", "一二"]
    out = []
    for _ in range(5000):
        out.append(rng.choice(extras) if rng.random() < 0.12 else words[min(int(rng.paretovariate(0.7)) - 1, len(words) - 1)])
        out.append(rng.choice([" "] * 12 + [", ", ". ", "\n", "  ", "", "-", " ("]))
    return "".join(out)


def ties(rng: random.Random) -> str:
    """Long words of two letters: many pairs of equal counts, and runs that overlap themselves."""
    words = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 24))) for _ in range(150)] + ["a" * n for n in range(1, 40)]
    return " ".join(rng.choice(words) for _ in range(400))


def train(case: dict, text: str) -> str:
    tokenizer = Tokenizer(models.BPE())
    if case["pattern"] == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(SPLIT % ("{1,3}" if case["pattern"] == "llama3" else "")), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if case["pattern"] == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=case["vocab_size"], special_tokens=case["special"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer.to_str(pretty=True)


def main() -> None:
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests/golden/bpe_training")
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"mixed.txt": mixed(random.Random(20)), "ties.txt": ties(random.Random(21)), "few.txt": "the cat in the hat, the bat in the vat\n"}
    for name, text in texts.items():
        (directory / name).write_bytes(text.encode())
    for case in CASES:
        (directory / f"{case['name']}.json").write_text(train(case, texts[case["text"]]), encoding="utf-8")
    (directory / "cases.json").write_text(json.dumps({"tokenizers": tokenizers.__version__, "cases": CASES}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
