#!/usr/bin/env python3
"""Trains the same runs with two builds and compares their bits: every loss and gradient norm of ten steps, and the SHA-256 of every tensor file of the last
checkpoint. A refactoring must leave them as they are. Prints a Markdown table; exits with 1 if any run differs.

  scripts/same-bits.py OLD/trireme NEW/trireme               all runs, about a quarter of an hour on two cores
  scripts/same-bits.py OLD/trireme NEW/trireme zero3 zbv     those whose name contains one of the words
"""
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

SERIAL = {"parallel.tensor": 1, "parallel.pipeline": 1, "parallel.data": 1, "parallel.zero_stage": 0, "parallel.sequence_parallel": "false"}
LAYOUTS = {
    "serial": {},
    "recompute": {"training.recompute": "full"},
    "tp2": {"tensor": 2},
    "tp2sp": {"tensor": 2, "sequence_parallel": "true"},
    "tp4": {"tensor": 4},
    "dp4": {"data": 4},
    "dp4zero1": {"data": 4, "zero_stage": 1},
    "dp4zero2": {"data": 4, "zero_stage": 2},
    "dp4zero3": {"data": 4, "zero_stage": 3},
    "dp4zero3rep2": {"data": 4, "zero_stage": 3, "replicate": 2},
    "dp4zero2full": {"data": 4, "zero_stage": 2, "gradient_accumulation": "full"},
    "dp2zero3step": {"data": 2, "zero_stage": 3, "reshard": "after_step"},
    "pp2": {"pipeline": 2},
    "pp2gpipe": {"pipeline": 2, "schedule": "gpipe"},
    "pp2interleaved": {"pipeline": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b"},
    "pp2zbh1": {"pipeline": 2, "schedule": "zb_h1"},
    "pp2zbh2": {"pipeline": 2, "schedule": "zb_h2"},
    "pp2zbv": {"pipeline": 2, "schedule": "zb_v"},
    "pp2tied": {"pipeline": 2, "model.tied_embeddings": "true"},
    "pp2zbvtied": {"pipeline": 2, "schedule": "zb_v", "model.tied_embeddings": "true"},
    "pp2dp2zero3": {"pipeline": 2, "data": 2, "zero_stage": 3},
    "pp2dp2zero3zbv": {"pipeline": 2, "data": 2, "zero_stage": 3, "schedule": "zb_v"},
    "tp2pp2dp2zero3sp": {"tensor": 2, "pipeline": 2, "data": 2, "zero_stage": 3, "sequence_parallel": "true"},
    "tp2pp2dp2zero1interleaved": {"tensor": 2, "pipeline": 2, "data": 2, "zero_stage": 1, "virtual_stages": 2, "schedule": "interleaved_1f1b"},
    "blocking": {"tensor": 2, "data": 2, "zero_stage": 3, "overlap": "false"},
    "bf16wire": {"data": 4, "zero_stage": 2, "training.reduce_dtype": "bf16"},
    "average": {"data": 2, "zero_stage": 1, "training.ema.decay": 0.9},
    "islands2": {"islands": 2, "training.local.steps": 5},
    "islands2delay": {"islands": 2, "training.local.steps": 5, "training.local.delay": 1, "training.local.blend": 0.5},
    "dp4median": {"data": 4, "security.aggregation.rule": "median", "security.aggregation.byzantine": 1},
    "dp4int8": {"data": 4, "training.compression.method": "int8"},
    "dp4powersgd": {"data": 4, "training.compression.method": "power_sgd"},
    "pp2dp2reroute": {"pipeline": 2, "data": 2, "resilience.reroute": "[1/1]"},
}
PRECISIONS = ("fp64", "fp32", "bf16", "fp16")
STEPS = 10


def settings_of(layout, precision, directory):
    settings = dict(SERIAL)
    for key, value in LAYOUTS[layout].items():
        settings[key if "." in key else f"parallel.{key}"] = value
    settings.update({"run.directory": directory, "training.precision": precision, "training.steps": STEPS, "training.global_batch_size": 16,
                     "training.micro_batch_size": 2, "training.sequence_length": 64, "training.schedule.warmup_steps": 2, "training.evaluate.every": 5, "training.evaluate.batches": 2,
                     "checkpoint.every": 0})
    return settings


def bits(binary, layout, precision, directory):
    """Losses and norms, digest of the state; None and what the run said where it is refused."""
    words = [binary, "train", "configs/quickstart.yaml"]
    for key, value in settings_of(layout, precision, directory).items():
        words += ["--set", f"{key}={value}"]
    done = subprocess.run(words, env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr
    with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    figures = [(line["step"], line.get("loss"), line.get("grad_norm"), line.get("validation_loss")) for line in lines
               if "loss" in line or "validation_loss" in line]  # other events are not part of what is trained
    latest, digest = f"{directory}/checkpoints/step-{STEPS:08d}", hashlib.sha256()
    for name in sorted(os.listdir(latest)):
        if name.endswith(".safetensors"):
            with open(f"{latest}/{name}", "rb") as file:
                digest.update(name.encode() + file.read())
    return figures, digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    binaries = [os.path.abspath(arguments.old), os.path.abspath(arguments.new)]
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    scratch = tempfile.mkdtemp(prefix="trireme-same-bits-")
    different = runs = 0
    print("| layout | " + " | ".join(PRECISIONS) + " |\n|---|" + "---|" * len(PRECISIONS))
    for layout in [name for name in LAYOUTS if not arguments.words or any(word in name for word in arguments.words)]:
        row = []
        for precision in PRECISIONS:
            results = [bits(binary, layout, precision, f"{scratch}/run-{i}") for i, binary in enumerate(binaries)]
            shutil.rmtree(scratch)
            os.mkdir(scratch)
            refused = results[0][0] is None and results[1][0] is None
            same = refused or results[0] == results[1]
            runs += not refused
            if refused:
                print(f"same-bits: {layout} {precision} is refused: {results[1][1].strip()}", file=sys.stderr)
            different += not same
            row.append("refused" if refused else "same" if same else "DIFFERENT")
            if not same:
                print(f"same-bits: {layout} {precision}: {[r[1] if r[0] is None else r for r in results]}", file=sys.stderr)
        print(f"| {layout} | " + " | ".join(row) + " |", flush=True)
    shutil.rmtree(scratch)
    print(f"\n{runs} runs, {different} different")
    sys.exit(1 if different or runs == 0 else 0)


if __name__ == "__main__":
    main()
