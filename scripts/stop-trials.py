#!/usr/bin/env python3
"""Stops training runs at random moments and resumes them: each stop must end with exit code 75 (or 0 after the last step), and each resumed run must have
the bits of an undisturbed one: every loss and gradient norm, and the weights and optimizer state of the last checkpoint. Prints a Markdown table.

  scripts/stop-trials.py                                     the trials below, about half an hour on two cores
  scripts/stop-trials.py --binary FILE --scale 0.1           a tenth of them, of another build
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ONE_RANK = {"parallel.tensor": 1, "parallel.pipeline": 1, "parallel.data": 1, "parallel.zero_stage": 0, "parallel.sequence_parallel": "false"}
# trials, signal, precision, OMP_NUM_THREADS, ranks (1 or the quickstart's 8), steps
CASES = [
    (100, "TERM", "fp32", 1, 1, 30), (100, "TERM", "fp32", 2, 1, 30),
    (25, "TERM", "fp16", 1, 1, 30), (25, "TERM", "fp16", 2, 1, 30), (25, "TERM", "bf16", 1, 1, 30), (25, "TERM", "bf16", 2, 1, 30),
    (50, "USR1", "fp32", 2, 1, 30), (25, "USR1", "fp16", 1, 1, 30), (25, "USR1", "bf16", 2, 1, 30),
    (50, "INT", "fp32", 2, 1, 30), (25, "INT", "fp16", 1, 1, 30), (25, "INT", "bf16", 2, 1, 30),
    (60, "TERM", "fp32", 1, 8, 12), (20, "TERM", "fp16", 1, 8, 12), (20, "TERM", "bf16", 1, 8, 12),
    (100, "USR1", "fp32", 1, 8, 12), (100, "INT", "fp32", 1, 8, 12),
]


def command(binary, case, directory):
    _, _, precision, _, ranks, steps = case
    settings = {"run.directory": directory, "training.steps": steps, "training.precision": precision, "checkpoint.every": 0, "training.evaluate.every": 0,
                "training.sequence_length": 64, "training.global_batch_size": 16, "training.schedule.warmup_steps": 2}
    if ranks == 1:
        settings.update(ONE_RANK)
    words = [binary, "train", "configs/quickstart.yaml"]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return words


def environment(case):
    return dict(os.environ, OMP_NUM_THREADS=str(case[3]), OMP_WAIT_POLICY="passive")


def bits(directory, steps):
    """Losses and norms of all steps, and the digest of every tensor file of the last checkpoint."""
    with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    done = [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]
    latest = f"{directory}/checkpoints/step-{steps:08d}"
    state = {}
    for name in sorted(os.listdir(latest)):
        if name.endswith(".safetensors"):
            with open(f"{latest}/{name}", "rb") as file:
                state[name] = hashlib.sha256(file.read()).hexdigest()
    return done, state


def first_step_seconds(binary, case, directory):
    """From the start of the command to its first step, and to its end."""
    begin = time.monotonic()
    with subprocess.Popen(command(binary, case, directory), env=environment(case), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        first = None
        while process.poll() is None:
            if first is None and os.path.exists(f"{directory}/metrics.jsonl") and '"loss"' in open(f"{directory}/metrics.jsonl", encoding="utf-8").read():
                first = time.monotonic() - begin
            time.sleep(0.002)
        if process.returncode != 0:
            sys.exit(f"stop-trials: the undisturbed run ended with {process.returncode}: {process.stderr.read().decode()}")
    return first, time.monotonic() - begin


def trial(binary, case, directory, delay):
    """Returns what went wrong, or None, and the exit code of the stopped run."""
    process = subprocess.Popen(command(binary, case, directory), env=environment(case), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(delay)
    process.send_signal(getattr(signal, "SIG" + case[1]))
    try:
        _, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        return "the stopped run did not end", -1
    code = process.returncode
    if code not in (0, 75):
        return f"exit code {code}: {errors.decode()[-300:]}", code
    resumed = subprocess.run(command(binary, case, directory), env=environment(case), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300, check=False)
    if resumed.returncode != 0:
        return f"the resumed run ended with {resumed.returncode}: {resumed.stderr.decode()[-300:]}", code
    return None, code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/trireme")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="only the trials of this number of ranks: 1 or 8")
    arguments = parser.parse_args()
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    draw = random.Random(arguments.seed)
    scratch = tempfile.mkdtemp(prefix="trireme-stops-")
    failures = 0
    print("| ranks | precision | threads | signal | stops | with a checkpoint | before the first step | after the last | failed |\n|---|---|---|---|---|---|---|---|---|")
    for case in [case for case in CASES if arguments.ranks in (None, case[4])]:
        count, name, precision, threads, ranks, steps = case
        count = max(1, round(count * arguments.scale))
        first, whole = first_step_seconds(arguments.binary, case, f"{scratch}/whole")
        expected = bits(f"{scratch}/whole", steps)
        saved = early = late = 0
        failed = []
        for number in range(count):
            directory = f"{scratch}/stopped"
            delay = draw.uniform(0.7 * first, whole)
            wrong, code = trial(arguments.binary, case, directory, delay)
            if wrong is None and bits(directory, steps) != expected:
                wrong = "the bits differ"
            if wrong is not None:
                failed.append(f"stop {number} after {delay:.3f} s: {wrong}")
            with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
                resumed = sum('"event":"start"' in line.replace(" ", "") for line in file) > 1
            late += code == 0
            saved += code == 75 and resumed
            early += code == 75 and not resumed
            shutil.rmtree(directory)
        shutil.rmtree(f"{scratch}/whole")
        failures += len(failed)
        print(f"| {ranks} | {precision} | {threads} | {name} | {count} | {saved} | {early} | {late} | {len(failed)} |", flush=True)
        for line in failed:
            print(f"stop-trials: {ranks} ranks, {precision}, {threads} threads, SIG{name}: {line}", file=sys.stderr, flush=True)
    shutil.rmtree(scratch)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
