#!/usr/bin/env python3
"""Trains a small model to its end while it is killed at random times, with several intervals between checkpoints and with checkpoint.every auto.

  scripts/bench/save_interval.py [--binary build/trireme] [--mtbf SECONDS] [--steps N] [--seeds N] [--fsync MS] [--every N...]

Each run has one rank, whose saves are synchronous and slow: every fsync takes some milliseconds longer (tests/shim/slow.cpp). The times between kills are
exponentially distributed with fixed seeds, the same for each interval, and count from the first step of a job, as failures of training do. A run ends when all
its steps are done, however often it was started. Prints the wall time of each run and, as means over the seeds, the share of it in the steps of the
history, the share that `trireme goodput` expects of training, saves and failures, and the time of a step.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = ("compute", "exposed communication", "data", "slow steps")
ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = """
run: {directory: run, device: cpu}
model: {layers: 2, hidden_size: 32, heads: 4, kv_heads: 2, ffn_size: 64}
training:
  steps: %d
  sequence_length: 64
  global_batch_size: 16
  micro_batch_size: 16
  optimizer: {learning_rate: 1.0e-3}
  schedule: {name: constant, warmup_steps: 0}
  evaluate: {every: 0}
data: {tokenizer: bytes, train: [train], validation: []}
checkpoint: {every: %s, asynchronous: false, keep: 2}
resilience: {mean_time_between_failures: %g}
"""


def count(path, text):
    try:
        return path.read_text().count(text)
    except FileNotFoundError:
        return 0


def train(arguments, every, seed, directory):
    """Returns the wall seconds, the number of kills and the goodput of one run."""
    (directory / "run.yaml").write_text(CONFIG % (arguments.steps, every, arguments.mtbf))
    (directory / "text.txt").write_text(" ".join(f"{number:05d}" for number in range(40000)))
    binary = [str(arguments.binary)]
    subprocess.run(binary + ["data", "build", "--tokenizer", "bytes", "--output", "train", "text.txt"], cwd=directory, check=True, capture_output=True)
    kills = random.Random(seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(arguments.shim), "TRIREME_SHIM_FSYNC_MS": str(arguments.fsync)}
    jobs, killed = directory / "run" / "jobs.jsonl", 0
    begin = time.monotonic()
    while True:
        ready = count(jobs, '"ready"')
        job = subprocess.Popen(binary + ["train", "run.yaml"], cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while job.poll() is None and count(jobs, '"ready"') == ready:
            time.sleep(0.002)
        try:
            job.wait(kills.expovariate(1 / arguments.mtbf))
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            job.wait()
            killed += 1
        if job.returncode == 0:
            break
        if job.returncode != -signal.SIGKILL:
            raise SystemExit(f"exit code {job.returncode}")
    seconds = time.monotonic() - begin
    report = json.loads(subprocess.run(binary + ["goodput", "run", "--json"], cwd=directory, check=True, capture_output=True).stdout)
    return seconds, killed, report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/trireme")
    parser.add_argument("--shim", type=pathlib.Path, default=ROOT / "build/tests/libshim_slow.so")
    parser.add_argument("--mtbf", type=float, default=4)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fsync", type=int, default=25)
    parser.add_argument("--every", nargs="+", default=["auto", "15", "30", "60", "120", "240", "480"])
    arguments = parser.parse_args()
    arguments.binary, arguments.shim = arguments.binary.resolve(), arguments.shim.resolve()
    runs = {every: [] for every in arguments.every}
    for seed in range(1, arguments.seeds + 1):  # in turns, because the speed of a busy machine drifts
        for every in arguments.every:
            with tempfile.TemporaryDirectory() as directory:
                runs[every].append(train(arguments, every, seed, pathlib.Path(directory)))
            print(f"seed {seed}, every {every}: {runs[every][-1][0]:.1f} s", file=sys.stderr, flush=True)
    print(f"{'every':>6} {'mean s':>8} {'useful':>8} {'expected':>8} {'step ms':>8} {'kills':>6}   seconds of each seed")
    for every, all_seeds in runs.items():
        def mean(value):
            return statistics.mean(value(run) for run in all_seeds)
        steps = mean(lambda run: sum(run[2]["seconds"][cause] or 0 for cause in STEPS) / run[2]["steps"])
        last = all_seeds[-1][2]["checkpoint_interval"]
        print(f"{every:>6} {mean(lambda run: run[0]):8.1f} {mean(lambda run: run[0] and run[2]['steps'] * steps / run[0]):8.1%}"
              f" {mean(lambda run: run[2]['forecast']['expected_share']):8.1%} {1000 * steps:8.2f} {sum(run[1] for run in all_seeds):6}   "
              + " ".join(f"{run[0]:.1f}" for run in all_seeds) + (f"   chosen at last: {last['steps']}" if last else ""), flush=True)


if __name__ == "__main__":
    main()
