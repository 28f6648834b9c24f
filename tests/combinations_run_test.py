#!/usr/bin/env python3
"""Runs pairs of features. A pair that `config show` accepts, as docs/combinations.md lists it, trains two steps and resumes for two more. One that it refuses ends
with exit code 64 and has written nothing. The pairs are drawn with a fixed seed from tests/combinations.txt. Federations need several jobs and GPUs need a GPU, so these two take part only in
pairs that are refused.
  tests/combinations_run_test.py [BINARY] [--all]     --all: 200 pairs; otherwise 8"""
import concurrent.futures
import importlib.util
import itertools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS = [word for word in sys.argv[1:] if not word.startswith("--")]
BINARY = os.path.abspath(WORDS[0] if WORDS else ROOT / "build/trireme")
COUNT = 200 if "--all" in sys.argv else 8
USAGE = 64
NOT_RUN = {"federation", "GPUs"}
KEY = "PeGpBrEQI71sSk8pqSUE3q2Edkh1Np83LJ93Pss7C94=\n"

spec = importlib.util.spec_from_file_location("combinations", ROOT / "scripts/combinations.py")
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)
table.BINARY = BINARY


def prepare(home):
    """A directory with the run's configuration, data and keys."""
    shutil.copy(ROOT / "tests/combinations.yaml", home / "run.yaml")
    text = home / "text.txt"
    text.write_text("".join(f"line {i} of {i * i}\n" for i in range(400)))
    subprocess.run([BINARY, "data", "build", "--tokenizer", "bytes", "--output", str(home / "tokens"), str(text)], check=True, capture_output=True)
    for name in ("privacy.key", "links.key"):
        (home / name).write_text(KEY)
        (home / name).chmod(0o600)


def train(home, settings, *more):
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [BINARY, "train", "run.yaml", "--oversubscribe", *words, *more]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300)


def complaint(pair, refused):
    """What is wrong with a pair, or None."""
    (one, ones), (other, others) = pair
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        prepare(home)
        settings = {**ones, **others}
        first = train(home, settings)
        name = f"{one} with {other}"
        if refused:
            if first.returncode != USAGE:
                return f"{name}: is refused by `config show`, but train ended with {first.returncode}: {first.stderr[-400:]}"
            return f"{name}: was refused and has written run/" if (home / "run").exists() else None
        if first.returncode != 0:
            return f"{name}: is accepted by `config show`, but train ended with {first.returncode}: {first.stderr[-600:]}"
        second = train(home, settings, "--set", "training.steps=4", "--change", "training.steps")
        if second.returncode != 0:
            return f"{name}: trains, but does not resume, {second.returncode}: {second.stderr[-600:]}"
        steps = [line for line in (home / "run" / "metrics.jsonl").read_text().splitlines() if '"step":4' in line.replace(" ", "")]
        return None if steps else f"{name}: has no line of step 4"


def main():
    listed = table.features()
    pairs = [pair for pair in itertools.combinations(listed, 2) if not table.excludes(pair[0][1], pair[1][1])]
    random.Random(54).shuffle(pairs)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        refusals = list(pool.map(lambda pair: table.refusal(pair[0][1], pair[1][1]), pairs[: 2 * COUNT]))
        drawn = [(pair, refused) for pair, refused in zip(pairs, refusals) if refused or not NOT_RUN & {pair[0][0], pair[1][0]}][:COUNT]
        complaints = [one for one in pool.map(lambda case: complaint(*case), drawn) if one]
    refused = sum(1 for _, why in drawn if why)
    print(f"{len(drawn)} pairs: {len(drawn) - refused} trained and resumed, {refused} refused, {len(complaints)} wrong")
    for one in complaints:
        print(one)
    sys.exit(1 if complaints or len(drawn) < COUNT else 0)


if __name__ == "__main__":
    main()
