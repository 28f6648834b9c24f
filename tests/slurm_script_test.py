#!/usr/bin/env python3
"""Runs the scripts of scripts/slurm with stand-ins for srun and scontrol: what do they ask for, and after which exits does the job go back into the queue?"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIVERGED = "training has diverged: "
SRUN = """#!/bin/sh
echo "$@" > srun.arguments
echo "step 1/2"
echo "$MESSAGE" >&2
exit "$CODE"
"""
SCONTROL = """#!/bin/sh
echo "$@" >> requeues
"""
# exit code, message on standard error, runs that end so, how many of them go back into the queue
CASES = [
    (0, "done", 1, 0),
    (64, "unknown key", 1, 0),
    (65, "bad data", 1, 0),
    (66, "no such file", 1, 0),
    (74, "disk full", 1, 0),
    (75, "stopped on request", 5, 5),
    (70, "rank 1 is dead", 5, 3),
    (137, "killed", 5, 3),
    (70, "trireme: " + DIVERGED + "20 steps in a row", 1, 0),
    (70, "trireme: training has stopped at an anomaly: in step 7", 1, 0),
]
SCRIPTS = ("train.sbatch", "train-cpu.sbatch")


def requested(script):
    """The options that a script asks Slurm for: {"ntasks-per-node": "8", ...}."""
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", (ROOT / "scripts/slurm" / script).read_text(), re.M)
    return dict(lines)


def complaints_about_requests():
    """What is wrong with the resources that the scripts ask for."""
    gpu, cpu = (requested(script) for script in SCRIPTS)
    found = []
    if not gpu.get("gpus-per-node") or gpu.get("gpus-per-node") != gpu.get("ntasks-per-node"):
        found.append("train.sbatch: as many GPUs as tasks are needed on each node")
    if int(gpu.get("cpus-per-task", 1)) < 8:
        found.append("train.sbatch: NCCL's threads need at least 8 CPUs a task")
    if gpu.get("gpu-bind") != "none":
        found.append("train.sbatch: every task must see all GPUs of its node, for direct copies between them")
    if any("gpu" in option for option in cpu):
        found.append("train-cpu.sbatch: asks for GPUs")
    for name, options in zip(SCRIPTS, (gpu, cpu)):
        missing = {"signal", "requeue", "open-mode", "output", "time", "nodes", "ntasks-per-node"} - set(options)
        if missing:
            found.append(f"{name}: no {sorted(missing)}")
    return found


def case(script, code, message, runs, requeues):
    """The complaint about one case; empty if it is as it must be."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "scripts").symlink_to(ROOT / "scripts")
        for tool, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / tool).write_text(text)
            (folder / tool).chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": name, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]",
                       "SLURM_CPUS_PER_TASK": "12", "CODE": str(code), "MESSAGE": message}
        for _ in range(runs):
            done = subprocess.run(["bash", str(ROOT / "scripts/slurm" / script), "run.yaml"], env=environment, capture_output=True, text=True, check=False)
            if done.returncode != code:
                return f"the script exits with {done.returncode}"
            if "step 1/2" not in done.stdout or message not in done.stderr:
                return "output is lost"
            arguments = (folder / "srun.arguments").read_text().split()
            if not {"--mpi=pmix", "--cpus-per-task=12"} <= set(arguments) or arguments[-3:] != ["build/trireme", "train", "run.yaml"]:
                return f"srun is called with {arguments}"
        found = (folder / "requeues").read_text().splitlines() if (folder / "requeues").exists() else []
        return "" if found == ["requeue 7"] * requeues else f"{len(found)} requeues of {runs} runs, not {requeues}"


def main():
    complaints = complaints_about_requests()
    complaints += [f"{script}, exit {of[0]}, {of[1]!r}: {text}" for script in SCRIPTS for of in CASES if (text := case(script, *of))]
    if DIVERGED not in (ROOT / "trainer/run/run.cpp").read_text():
        complaints.append(f"the program no longer says {DIVERGED!r}")
    print("\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
