#!/usr/bin/env python3
"""Measures what resilience.peer_copies costs a run: pairs of runs with and without copies, in alternating order, on one machine.

  scripts/bench/peer_copies.py [--config FILE] [--steps N] [--pairs N] [--every N] [--copies N] [--set KEY=VALUE ...]

A pair's figure is the ratio of the times from the first to the last step in metrics.jsonl. Prints each ratio, their median, and a 95 % interval of the median by
resampling.
"""
import argparse
import datetime
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def seconds(directory):
    times = []
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry and "event" not in entry:
            times.append(datetime.datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp())
    return times[-1] - times[0]


def train(arguments, directory, more):
    command = [str(ROOT / "build" / "trireme"), "train", arguments.config, "--oversubscribe"]
    sets = [f"run.directory={directory}", f"training.steps={arguments.steps}", "checkpoint.every=0", f"training.evaluate.every={arguments.steps}"]
    for setting in sets + (arguments.set or []) + more:
        command += ["--set", setting]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr[-2000:])
    return seconds(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--set", action="append")
    arguments = parser.parse_args()
    copies = [f"resilience.peer_copies={arguments.copies}", f"resilience.peer_every={arguments.every}"]
    ratios = []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(arguments.pairs):
            found = {}
            for with_copies in (pair % 2 == 0, pair % 2 != 0):
                directory = pathlib.Path(scratch) / f"{pair}-{int(with_copies)}"
                found[with_copies] = train(arguments, directory, copies if with_copies else [])
            ratios.append(found[True] / found[False])
            print(f"pair {pair + 1}: {found[True]:.3f} s with copies, {found[False]:.3f} s without, ratio {ratios[-1]:.4f}", flush=True)
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(f"median {statistics.median(ratios):.4f}, 95 % interval {medians[50]:.4f} to {medians[1949]:.4f}")


if __name__ == "__main__":
    main()
