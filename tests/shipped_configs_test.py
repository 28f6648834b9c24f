#!/usr/bin/env python3
"""Runs every command on every shipped configuration with nothing set, as a user would first, in a directory that has the configurations and nothing else; then
three of them again without each of their optional keys. Slurm's commands are stand-ins (tests/slurm/jobs.py has the real ones).
  tests/shipped_configs_test.py [BINARY] [--all] [--table]
--all: also the commands that compute, and training without each key rather than without every third; --table: prints exit codes and seconds as a Markdown table."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
arguments = [word for word in sys.argv[1:] if not word.startswith("--")]
BINARY = os.path.abspath(arguments[0] if arguments else ROOT / "build/trireme")
OK, FOUND, USAGE, MISSING, STOPPED = 0, 1, 64, 66, 75

SLURM = {
    "sinfo": """case "$*" in
  *--exact*) echo 'main|2100|96|2000000|gpu:h100:8|idle' ;;
esac""",
    "scontrol": """case "$1 $2" in
  "show partition") echo "PartitionName=main Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED PreemptMode=OFF State=UP GraceTime=0" ;;
  "show config") echo "MaxArraySize = 1001" ;;
esac""",
    "srun": """printf 'MPI plugin types are...\\n\\tpmix\\n' >&2""",
    "sbatch": "echo 7",
}

# What each command may answer. Data that are not there and a GPU that this machine lacks are answers, and never a fault of the program.
COMMANDS = {
    "config show": {OK},
    "config explain": {OK},
    "config actions": {OK},
    "config schema": {OK},
    "plan": {OK},
    "submit": {OK},
    "train": {MISSING, USAGE},
    "eval --checkpoint runs/none": {MISSING, USAGE},
}
COMPUTES = {"doctor": {OK, FOUND}, "verify": {OK}, "bench step --steps 1": {OK, USAGE}}
if "--all" in sys.argv:
    COMMANDS |= COMPUTES
# A configuration that trains here, beside two of the shipped ones, for the keys that are taken away.
WORKING = """\
run:
  name: small
  device: cpu
  seed: 3
model:
  architecture: llama
  layers: 2
  hidden_size: 16
  heads: 2
  kv_heads: 1
  ffn_size: 32
  vocab_size: 256
  dropout: 0.1
  window: 8
parallel:
  tensor: 1
  data: 1
  zero_stage: 0
training:
  steps: 2
  sequence_length: 16
  micro_batch_size: 2
  global_batch_size: 4
  precision: fp32
  recompute: selective
  gradient_clip: 1.0
  optimizer: {name: adamw, learning_rate: 1.0e-3, beta1: 0.8, weight_decay: 0.1}
  schedule: {name: cosine, warmup_steps: 1, final_learning_rate: 1.0e-4}
  ema: {decay: 0.9}
  evaluate: {every: 1, batches: 1}
  stop: {patience: 5, minimum: 0.01}
data:
  tokenizer: bytes
  train: [data/quickstart/train]
  validation: [data/quickstart/validation]
  document_mask: true
checkpoint:
  every: 1
  keep: 1
  keep_best: 1
observe:
  tensorboard: true
  activations: {every: 1}
  samples: {every: 1, prompts: [ab], max_tokens: 2}
"""
# Keys without which these three do not run as they stand, because others need them.
REQUIRED = {
    "small.yaml": "training.steps training.evaluate training.evaluate.every training.stop.patience data.train data.validation checkpoint.every observe.samples.every "
                  "observe.samples.prompts observe.samples.max_tokens",
    "quickstart.yaml": "training.steps data.train data.validation",
    "trust.yaml": "parallel.data training.steps training.global_batch_size training.compression.method data.train data.validation security.aggregation.rule "
                  "security.aggregation.byzantine security.privacy.clip security.privacy.noise security.privacy.delta security.privacy.key_file security.encryption "
                  "security.key_file security.audit.enabled",
}

# What the raw text of an exception looks like.
RAW = re.compile(r"std::|basic_string|filesystem error|terminate called|what\(\)|stoi|stod|json\.exception|yaml-cpp|bad conversion|does not hold")


class Folder:
    """A directory with the shipped configurations and stand-ins for Slurm."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        shutil.copytree(ROOT / "configs", self.path / "configs")
        (self.path / "bin").mkdir()
        for name, text in SLURM.items():
            (self.path / "bin" / name).write_text("#!/bin/sh\n" + text + "\n")
            (self.path / "bin" / name).chmod(0o755)
        words = ("SLURM_", "OMPI_", "PMI_", "PMIX_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(words)} | {"PATH": f"{self.path}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, *words):
        begin = time.monotonic()
        result = subprocess.run([BINARY, *words], cwd=self.path, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        return result, time.monotonic() - begin


    def build_data(self):
        """The data that the trained configurations name: a small text."""
        (self.path / "text").write_text("It is a truth universally acknowledged, that a single man in possession of a good fortune.\n" * 400)
        for part in ("train", "validation"):
            self.run("data", "build", "--output", f"data/quickstart/{part}", "text")
        (self.path / "data/privacy.key").write_bytes(os.urandom(32))
        (self.path / "data/privacy.key").chmod(0o600)


problems = []


def judge(result, allowed, words):
    line = " ".join(words)
    if result.returncode not in allowed:
        problems.append(f"{line}: exit code {result.returncode}, expected {sorted(allowed)}: {result.stderr.strip()[-400:]}")
    if RAW.search(result.stderr):
        problems.append(f"{line}: raw text of an exception: {RAW.search(result.stderr)[0]}: {result.stderr.strip()[-400:]}")
    if result.returncode not in (OK, FOUND) and not result.stderr.strip():
        problems.append(f"{line}: no message with exit code {result.returncode}")


def keys_of(text):
    """(first line, last line, path) of each key of a block- or flow-style file of this project, by indentation."""
    stack, found = [], []
    for number, line in enumerate(text.split("\n")):
        match = re.match(r"( *)([a-z_0-9]+):(.*)", line)
        if not match:
            continue
        indent, key, rest = len(match[1]), match[2], match[3].split(" #")[0].strip()
        while stack and stack[-1][0] >= indent:
            stack.pop()
        path = [name for _, name in stack] + [key]
        if rest.startswith("{"):
            found += [(number, ".".join(path + [inner]), inner) for inner in re.findall(r"(?:\{|, )([a-z_0-9]+): ", rest)]
        if rest:
            found.append((number, ".".join(path), None))
        stack.append((indent, key))
    return found


def without(text, number, inner):
    lines = text.split("\n")
    if inner is None:
        del lines[number]
    else:
        lines[number] = re.sub(r"([{ ])" + inner + r": (\[[^\]]*\]|\{[^}]*\}|[^,}]*)(, )?", r"\1", lines[number], count=1).replace(", }", "}")
    # A section that has lost its only key.
    return re.sub(r"(?m)^( *)([a-z_0-9]+):[ ]*\n(?!\1 )", "", "\n".join(lines))


def main():
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(name)
        configs = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
        for config in configs:
            row = []
            for command, allowed in COMMANDS.items():
                verb, *options = command.split(" --")
                words = [*verb.split(), f"configs/{config}", *(word for option in options for word in f"--{option}".split())]
                result, seconds = folder.run(*words)
                judge(result, allowed, words)
                row.append(f"{result.returncode} ({seconds:.1f} s)")
            rows.append((config, row))
        for sweep in sorted(path.name for path in (ROOT / "configs/sweeps").glob("*.yaml")):
            result, _ = folder.run("sweep", f"configs/sweeps/{sweep}")
            judge(result, {MISSING}, ["sweep", sweep])
        folder.build_data()
        trains = {"small.yaml": WORKING} | {name: (ROOT / "configs" / name).read_text() for name in ("quickstart.yaml", "trust.yaml")}
        removed = 0
        for config, text in trains.items():
            for number, path, inner in keys_of(text):
                removed += 1
                (folder.path / "less.yaml").write_text(without(text, number, inner))
                commands = [["config", "show"], ["plan"], ["submit"]]
                if (config == "small.yaml" and removed % 3 == 0) or "--all" in sys.argv:
                    commands.append(["train", "--max-steps", "2", "--resume", "never"])
                codes = set()
                for command in commands:
                    result, _ = folder.run(*command, "less.yaml")
                    judge(result, {OK, USAGE, MISSING, STOPPED}, [*command, f"{config} without {path}"])
                    codes.add(result.returncode)
                if codes - {OK, STOPPED} and path not in REQUIRED[config].split():
                    problems.append(f"{config} without {path}: exit codes {sorted(codes)}")
                shutil.rmtree(folder.path / "runs", ignore_errors=True)
        if removed < 90:
            problems.append(f"only {removed} keys were taken away")
        leftover = sorted(p.name for p in folder.path.iterdir() if p.name not in ("configs", "bin", "data", "less.yaml", "runs", "text"))
        if leftover:
            problems.append(f"written beside the run directories: {leftover}")
    if "--table" in sys.argv:
        print("| configuration | " + " | ".join(COMMANDS) + " |\n|---" * 1 + "|---" * len(COMMANDS) + "|")
        for config, row in rows:
            print(f"| {config} | " + " | ".join(row) + " |")
        print(f"{removed} keys taken away")
    print("\n".join(problems), file=sys.stderr)
    sys.exit(1 if problems else 0)


main()
