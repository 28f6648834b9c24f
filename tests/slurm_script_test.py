#!/usr/bin/env python3
"""Runs scripts/slurm/train.sbatch with stand-ins for srun and scontrol: after which exits does the job go back into the queue?"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIVERGED = "training has diverged: "
SRUN = """#!/bin/sh
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
]


def case(code, message, runs, requeues):
    """The complaint about one case; empty if it is as it must be."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for tool, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / tool).write_text(text)
            (folder / tool).chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": name, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]",
                       "CODE": str(code), "MESSAGE": message}
        for _ in range(runs):
            done = subprocess.run(["bash", str(ROOT / "scripts/slurm/train.sbatch"), "run.yaml"], env=environment, capture_output=True, text=True, check=False)
            if done.returncode != code:
                return f"the script exits with {done.returncode}"
            if "step 1/2" not in done.stdout or message not in done.stderr:
                return "output is lost"
        found = (folder / "requeues").read_text().splitlines() if (folder / "requeues").exists() else []
        return "" if found == ["requeue 7"] * requeues else f"{len(found)} requeues of {runs} runs, not {requeues}"


def main():
    complaints = [f"exit {code}, {message!r}: {text}" for code, message, runs, requeues in CASES if (text := case(code, message, runs, requeues))]
    if DIVERGED not in (ROOT / "trainer/run/run.cpp").read_text():
        complaints.append(f"the program no longer says {DIVERGED!r}")
    print("\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
