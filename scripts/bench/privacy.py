#!/usr/bin/env python3
"""Time and memory of private steps beside those of plain ones.

  scripts/bench/privacy.py [PAIRS [SET...]]      five pairs by default; SET: KEY=VALUE, for both sides of a pair

Trains the quickstart's model on one rank for 100 steps at a time with the data that ./scripts/quickstart.sh prepares, alternately without and with
security.privacy (clip 1, noise 1), in a temporary directory. Prints for each pair the ratio of the mean seconds of a step, as private steps differ in their
number of sequences, and of the measured peaks of memory; then the medians of the pairs.
"""
import base64
import os
import statistics
import subprocess
import sys
import tempfile

from quickstart_run import lines_of, settings

STEPS = 100


def run(directory, sets, private):
    common = {
        "run.directory": directory, "parallel.tensor": 1, "parallel.pipeline": 1, "parallel.data": 1, "parallel.sequence_parallel": "false",
        "training.evaluate.every": 0, "checkpoint.every": 0, "training.steps": STEPS,
    }
    if private:
        key = f"{directory}.key"
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, base64.b64encode(bytes(range(32))))
        os.close(descriptor)
        common |= {"security.privacy.clip": 1, "security.privacy.noise": 1, "security.privacy.delta": 1e-5, "security.privacy.key_file": key}
    done = subprocess.run(["build/trireme", "train", "configs/quickstart.yaml", *settings(common | sets)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = lines_of(directory)
    memory = [line["measured"] for line in lines if line.get("event") == "memory"][-1]
    seconds = [line["step_seconds"] for line in lines if "grad_norm" in line][2:]
    return statistics.fmean(seconds), max(rank["peak"] for rank in memory)


def main(arguments):
    pairs = int(arguments[0]) if arguments else 5
    sets = dict(one.split("=", 1) for one in arguments[1:])
    ratios, memory = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(pairs):
            plain, private = (run(f"{scratch}/{pair}-{side}", sets, side == "private") for side in ("plain", "private"))
            ratios.append(private[0] / plain[0])
            memory.append(private[1] / plain[1])
            print(f"pair {pair}: time {ratios[-1]:.2f}, memory {memory[-1]:.2f}", flush=True)
    print(f"median of {pairs} pairs: time {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f}), memory {statistics.median(memory):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
