#!/usr/bin/env python3
"""Compares what two builds say of the same configurations: the resolved configuration, or the exact text of the refusal. A refactoring of the checks must
leave both as they are. The configurations are: each pair of features of tests/combinations.txt, the settings of every refusal in tests/unit, values at and
beyond the bounds of each key, alone and with a feature, and random triples. Prints each difference once; exits with 1 if there is any.

  scripts/same-refusals.py record OLD/trireme ANSWERS       writes what it says into the file ANSWERS
  scripts/same-refusals.py compare NEW/trireme ANSWERS
"""
import argparse
import collections
import concurrent.futures
import gzip
import hashlib
import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASES = {"combinations": (ROOT / "tests/combinations.yaml").read_text(), "tests": """model: {layers: 5, hidden_size: 96, heads: 12, kv_heads: 2, ffn_size: 256}
parallel: {tensor: 2}
training: {steps: 100, sequence_length: 32, micro_batch_size: 1, global_batch_size: 8}
data: {train: [data/a], validation: [data/v]}
"""}
WITH_A_FEATURE, TRIPLES = 15000, 8000


def features():
    spec = importlib.util.spec_from_file_location("combinations", ROOT / "scripts/combinations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [tuple(f"{key}={value}" for key, value in settings.items()) for _, settings in module.features()]


def tested():
    """The settings of each list of texts in tests/unit that consists of settings alone."""
    found = set()
    for path in sorted((ROOT / "tests/unit").glob("*.cpp")):
        for words in re.findall(r'\{((?:"(?:[^"\\]|\\.)*",?\s*)+)\}', path.read_text()):
            texts = [json.loads(text.replace("\\'", "'")) for text in re.findall(r'"(?:[^"\\]|\\.)*"', words) if "\\x" not in text and "\\0" not in text]
            if texts and all(re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)+=(\[.*|(?!.*: ).*)", text) for text in texts):
                found.add(tuple(texts))
    return sorted(found)


def values(schema):
    """Values of a key, valid and invalid, as its JSON Schema has them."""
    if "anyOf" in schema or "oneOf" in schema:
        return [value for one in schema.get("anyOf", schema.get("oneOf")) for value in values(one)]
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return schema["enum"] + ["nonsense"]
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    found = []
    if "boolean" in kinds:
        found += ["true", "false"]
    if "null" in kinds:
        found.append("null")
    if "integer" in kinds:
        low, high = schema.get("minimum", -4), schema.get("maximum", 2**40)
        found += [low - 1, low, low + 1, 2, 3, 4, 7, 8, 1000, high, high + 1]
    if "number" in kinds:
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", -4)), schema.get("maximum", schema.get("exclusiveMaximum", 1e12))
        found += [low - 1, low, 0.1, 0.5, 1, high, high + 1]
    if "string" in kinds:
        found += ["text", "none", "0.0.0.0"]
    if "array" in kinds:
        items = [value for value in values(schema.get("items", {}))[:4]]
        found += ["[]"] + [f"[{value}]" for value in items] + [f"[{value}, {value}]" for value in items]
    return found


def keys(schema, prefix=""):
    for name, part in schema.get("properties", {}).items():
        if "properties" in part:
            yield from keys(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def text_of(value):
    return str(value).lower() if value is None or isinstance(value, bool) else "null" if value is None else str(value)


def configurations(binary):
    """[[name of the base, settings], ...]"""
    schema = json.loads(subprocess.run([binary, "config", "schema"], capture_output=True, text=True, check=True).stdout)
    single = sorted({(f"{key}={text_of(value)}",) for key, part in keys(schema) for value in values(part)})
    listed, cases = features(), tested()
    chosen = random.Random(54)
    atoms = sorted({(setting,) for case in listed + cases for setting in case} | set(single))
    both = [()] + listed + cases + single
    one_base = [one + other for one, other in itertools.combinations(listed, 2)]
    one_base += [chosen.choice(listed) + chosen.choice(single + cases) for _ in range(WITH_A_FEATURE)]
    one_base += [sum(chosen.sample(atoms, 3), ()) for _ in range(TRIPLES)]
    return [(base, one) for one in both for base in BASES] + [("combinations", one) for one in one_base]


def answers(binary, cases):
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, text in BASES.items():
            (pathlib.Path(directory) / f"{name}.yaml").write_text(text)

        def answer(case):
            words = [word for setting in case[1] for word in ("--set", setting)]
            result = subprocess.run([binary, "config", "show", f"{case[0]}.yaml", *words], capture_output=True, text=True, cwd=directory)
            return [result.returncode, result.stdout if result.returncode else hashlib.sha256(result.stdout.encode()).hexdigest(), result.stderr]

        return list(pool.map(answer, cases))


def refusals(text):
    """{key and rule: what is allowed} of a message, without its values."""
    parts = [re.fullmatch(r"\S+ ([a-z_.0-9]+)(?:=.*?)?: (.*?)((?:; allowed .*)?(?:; nearest valid .*)?)", line) for line in text.splitlines()]
    lines = [(f"{part[1]}: {part[2]}", part[3]) if part else (line, "") for part, line in zip(parts, text.splitlines())]
    return {re.sub(r"[0-9]+", "N", rule): re.sub(r"[0-9]+", "N", allowed) for rule, allowed in lines}


def differences(old, new):
    """What differs between two answers, each thing in words."""
    if old[0] != new[0]:
        return [f"exit code {old[0]} -> {new[0]}: {(old[2] or new[2]).splitlines()[0]}"]
    if sorted(old[2].splitlines()) == sorted(new[2].splitlines()):
        return ["the same lines in another order" if old[1] == new[1] else "the resolved configuration"]
    one, other = refusals(old[2]), refusals(new[2])
    found = [f"gone: {rule}{one[rule]}" for rule in one if rule not in other] + [f"new: {rule}{other[rule]}" for rule in other if rule not in one]
    found += [f"{rule}\n    - {one[rule][2:]}\n    + {other[rule][2:]}" for rule in one if rule in other and one[rule] != other[rule]]
    return found or ["values"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("answers")
    arguments = parser.parse_args()
    if arguments.action == "record":
        cases = configurations(arguments.binary)
        with gzip.open(arguments.answers, "wt") as out:
            json.dump([cases, answers(arguments.binary, cases)], out)
        return 0
    with gzip.open(arguments.answers, "rt") as read:
        cases, recorded = json.load(read)
    found = collections.defaultdict(list)
    count = 0
    for case, old, new in zip(cases, recorded, answers(arguments.binary, cases)):
        count += old != new
        for difference in differences(old, new) if old != new else ():
            found[difference].append(case)
    refused = sum(1 for one in recorded if one[0] != 0)
    texts = {re.sub(r"[0-9]+", "0", line.split(": ", 1)[-1]) for one in recorded if one[0] != 0 for line in one[2].splitlines()}
    print(f"{len(cases)} configurations, {refused} of them refused with {len(texts)} different rules; {count} differ")
    for difference, where in sorted(found.items(), key=lambda one: -len(one[1])):
        print(f"{len(where)} x {difference}\n    such as {where[0][0]}.yaml {' '.join(where[0][1])}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
