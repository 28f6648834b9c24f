#!/usr/bin/env python3
"""Writes docs/combinations.md: which features go together, as the program itself says for each pair of tests/combinations.txt.

  scripts/combinations.py            writes it
  scripts/combinations.py --check    exits 1 if it differs from what would be written; the default suite asks

The environment variable TRIREME names the binary; build/trireme by default.
"""
import concurrent.futures
import itertools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "combinations.md"
FEATURES = ROOT / "tests" / "combinations.txt"
BASE = ROOT / "tests" / "combinations.yaml"
BINARY = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
HEAD = """\
# Which features go together

<!-- Written by scripts/combinations.py from what the program says. Do not edit. -->

Each pair of the features below either runs (`+`), or is refused with exit code 64 and the reason of that number. `=`: both are values of one key. The settings
are those of `tests/combinations.txt`. Pairs with a robust rule, privacy, encryption or the audit log are trained with by `build/tests/test_parity "combinations:*"`.
"""


def features():
    """[(name, {key: value}), ...]; the first key is the feature itself."""
    listed = []
    for line in FEATURES.read_text().split("\n"):
        if line and not line.startswith("#"):
            name, settings = line.split(": ", 1)
            listed.append((name, dict(setting.split("=", 1) for setting in settings.split())))
    return listed


def refusal(*settings):
    """What the program objects to, or None."""
    merged = {key: value for one in settings for key, value in one.items()}
    words = [word for key, value in merged.items() for word in ("--set", f"{key}={value}")]
    result = subprocess.run([BINARY, "config", "show", str(BASE), *words], capture_output=True, text=True)
    if result.returncode == 0:
        return None
    objections = re.findall(r"^\S+ (\S+)=[^:\n]*: (.*?); allowed .*$", result.stderr, re.M)
    if result.returncode != 64 or not objections:
        sys.exit(f"combinations: {' '.join(words)}: exit code {result.returncode}: {result.stderr}")
    mains = [next(iter(one)) for one in settings]
    key, rule = next((one for one in objections if one[0] in mains), objections[0])
    return f"`{key}`: {rule}"


def excludes(one, other):
    return any(other.get(key, value) != value for key, value in one.items())


def page():
    listed = features()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for (name, _), reason in zip(listed, pool.map(lambda feature: refusal(feature[1]), listed)):
            if reason:
                sys.exit(f"combinations: {name} is refused by itself: {reason}")
        pairs = [pair for pair in itertools.combinations(range(len(listed)), 2) if not excludes(listed[pair[0]][1], listed[pair[1]][1])]
        found = dict(zip(pairs, pool.map(lambda pair: refusal(listed[pair[0]][1], listed[pair[1]][1]), pairs)))
    numbers = {}
    for reason in found.values():
        if reason and reason not in numbers:
            numbers[reason] = len(numbers) + 1

    def cell(row, column):
        pair = (min(row, column), max(row, column))
        if row == column:
            return ""
        if pair not in found:
            return "="
        return str(numbers[found[pair]]) if found[pair] else "+"

    lines = [HEAD, "| | feature | " + " | ".join(str(i + 1) for i in range(len(listed))) + " |", "|---" * (len(listed) + 2) + "|"]
    for row, (name, _) in enumerate(listed):
        lines.append(f"| {row + 1} | {name} | " + " | ".join(cell(row, column) for column in range(len(listed))) + " |")
    lines += ["", "## Reasons", ""]
    lines += [f"{number}. {reason}" for reason, number in numbers.items()]
    return "\n".join(lines) + "\n"


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("combinations: docs/combinations.md differs from what the program says; run scripts/combinations.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
