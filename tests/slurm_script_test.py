#!/usr/bin/env python3
"""Runs `trireme submit`, and the batch scripts that it writes, with stand-ins for the commands of Slurm: what do they ask for, after which ends does the job go
back into the queue, and which nodes does it avoid?
  tests/slurm_script_test.py [BINARY [PART...]]     parts: ends links command_lines nodes submission"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIVERGED = "training has diverged: "
CONFIG = "run: {name: r, directory: runs/r, device: cpu}\nmodel: {layers: 2, hidden_size: 16, heads: 2}\nparallel: {data: 2, zero_stage: 3}\n" \
         "training: {steps: 9, sequence_length: 16, global_batch_size: 8}\ndata: {train: [train]}\n"
# Each stand-in notes its words, an argument a line, and answers from files or variables.
COMMON = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/}" "$@" -- >> "$FAKES/calls"\n'
FAKES = {
    "sinfo": """case "$*" in
  *--exact*) echo 'low|3|4|4000|(null)|idle' ;;
  *--states=idle*) printf '%s (null)\\n' ${GOOD:-n1 n2 n3 n1} ;;
  *--states=*) cat "$FAKES/bad_nodes" 2> /dev/null || true ;;
esac
""",
    "scontrol": """case "$1 $2" in
  "show partition") echo "PartitionName=low Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 PreemptMode=OFF State=UP GraceTime=0" ;;
  "show config") echo "MaxArraySize = 1001" ;;
  "show job") echo "JobId=7 JobName=r UserId=me JobState=${STATE:-RUNNING} Reason=${REASON:-None} Dependency=(null) Requeue=1 Restarts=${RESTARTS:-$SLURM_RESTART_COUNT} BatchFlag=1 ReqNodeList=(null) ExcNodeList=${BEFORE:-(null)} X=" ;;
  "show hostnames") case "$3" in n9) echo n9 ;; *) printf 'n1\\nn2\\n' ;; esac ;;
esac
""",
    "srun": """if [ "$1" = --mpi=list ]; then printf 'MPI plugin types are...\\n\\tpmix\\n\\tnone\\n' >&2; exit 0; fi
printf '%s\\n' "$@" > "$FAKES/srun.arguments"
if [ -e "$FAKES/fail_launch" ]; then
  rm "$FAKES/fail_launch"
  echo "srun: error: task 1 launch failed: Unspecified error" >&2
  exit 137
fi
echo "step 1/2"
printf '%s\\n' "$MESSAGE" >&2
if [ -n "${NEW:-}" ]; then mkdir -p "$RUN/checkpoints"; ln -sfn "step-$RANDOM$RANDOM" "$RUN/checkpoints/latest"; fi
exit "$CODE"
""",
    "sbatch": """[ -z "${REFUSE:-}" ] || { echo "sbatch: error: $REFUSE" >&2; exit 1; }
echo '7;cluster'
""",
}


class Stage:
    """A directory with stand-ins in PATH, a configuration and the script that was written for it."""

    def __init__(self, folder, binary, options=()):
        self.folder, self.binary = pathlib.Path(folder), binary
        for name, text in FAKES.items():
            (self.folder / name).write_text(COMMON + text)
            (self.folder / name).chmod(0o755)
        (self.folder / "run.yaml").write_text(CONFIG)
        self.run_directory = self.folder / "runs/r"
        self.environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FAKES": folder, "RUN": str(self.run_directory)}
        self.script = self.submit("--dry-run", *options).stdout

    def submit(self, *options, **variables):
        return subprocess.run([self.binary, "submit", "run.yaml", *options], cwd=self.folder, env={**self.environment, **variables}, capture_output=True, text=True,
                              check=False)

    def run(self, code, message="", restart=0, **variables):
        """One try of the job. Returns what the script has done."""
        path = self.folder / "job.sbatch"
        path.write_text(self.script)
        (self.folder / "calls").write_text("")
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "low", "SLURM_CPUS_PER_TASK": "12",
               "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_RESTART_COUNT": str(restart), "CODE": str(code), "MESSAGE": message}
        return subprocess.run(["bash", str(path)], cwd="/", env={**self.environment, **job, **variables}, capture_output=True, text=True, check=False)

    def calls(self):
        """The calls of stand-ins since the last try: [name, argument, ...] each."""
        return [call.splitlines() for call in re.split(r"^--\n", (self.folder / "calls").read_text(), flags=re.M) if call]

    def requeued(self):
        return ["scontrol", "requeue", "7"] in self.calls()

    def excluded(self):
        return [word for call in self.calls() if call[:2] == ["scontrol", "update"] for word in call[2:] if word.startswith("ExcNodeList=")]


def must(good, what):
    if not good:
        raise AssertionError(what)


# exit code, message on standard error, variables, ends in a row, how many of them go back into the queue
ENDS = [
    (0, "done", {}, 1, 0),
    (0, "srun: error: Timed out waiting for job step to complete", {"EXIT": "70"}, 4, 3),
    (0, "srun: launch/slurm: launch_p_step_launch: StepId=4.0 aborted before step completely launched.", {"EXIT": "70", "NEW": "1"}, 2, 2),
    (64, "unknown key", {}, 1, 0),
    (65, "bad data", {}, 1, 0),
    (66, "no such file", {}, 1, 0),
    (74, "disk full", {}, 1, 0),
    (64, "run.directory=r: another job is training there (process 3 on n1); allowed a different directory", {}, 4, 3),  # on a node that was cut off
    (75, "stopped on request", {"NEW": "1"}, 6, 6),
    (75, "stopped on request before the first step", {}, 4, 3),
    (70, "rank 1 is dead", {}, 4, 3),
    (70, "rank 1 is dead", {"NEW": "1"}, 6, 6),
    (137, "killed", {}, 4, 3),
    (70, "trireme: " + DIVERGED + "20 steps in a row", {}, 1, 0),
    (70, "trireme: training has stopped at an anomaly: in step 7", {}, 1, 0),
    (75, "stopped on request", {"STATE": "COMPLETING", "NEW": "1"}, 1, 0),  # scancel
    (75, "stopped on request", {"STATE": "COMPLETING", "REASON": "TimeLimit", "NEW": "1"}, 2, 2),
    (137, "killed", {"STATE": "COMPLETING", "REASON": "TimeLimit"}, 2, 2),
    (75, "stopped on request", {"STATE": "COMPLETING", "RESTARTS": "1"}, 1, 0),  # Slurm has requeued it, as where a node was set down
]


def ends(binary):
    for code, message, variables, runs, wanted in ENDS:
        with tempfile.TemporaryDirectory() as folder:
            stage, found = Stage(folder, binary), 0
            srun_code = code
            for restart in range(runs):
                done = stage.run(srun_code, message, restart, **variables)
                what = f"exit {code}, {message!r}, {variables}: "
                code = int(variables.get("EXIT", code))
                must(done.returncode == code, what + f"the script exits with {done.returncode}: {done.stderr}")
                must("step 1/2" in done.stdout and message in done.stderr, what + "output is lost")
                must(f"{stage.folder}/job.sbatch: line" not in done.stderr, what + f"the shell complains: {done.stderr}")
                found += stage.requeued()
                lines = [json.loads(line) for line in (stage.run_directory / "slurm/jobs.jsonl").read_text().splitlines()]
                must([(one["event"], one["restart"], one["job"]) for one in lines[-2:]] == [("start", restart, "7"), ("end", restart, "7")], what + f"{lines}")
                after = "requeued" if stage.requeued() else "requeued-by-slurm" if "RESTARTS" in variables else "ends"
                must(lines[-1]["code"] == code and lines[-1]["next"] == after, what + f"{lines[-1]}")
            must(found == wanted, what + f"{found} requeues of {runs} ends, not {wanted}")


def links(binary):
    """A run directory that somebody else has made: nothing is written through its links, into its pipes or into files with a second name."""
    for name in ["7.messages", "7.begun", "7.tries", "7.failed", "jobs.jsonl", ""]:
        for kind in ["link", "second name", "pipe"]:
            with tempfile.TemporaryDirectory() as folder:
                stage = Stage(folder, binary)
                precious, notes = stage.folder / "precious", stage.run_directory / "slurm"
                elsewhere = stage.folder / "elsewhere"
                elsewhere.mkdir()
                precious.write_text("precious")
                at = notes / name if name else notes
                at.parent.mkdir(parents=True)
                if kind == "link":
                    at.symlink_to(precious if name else elsewhere)
                elif kind == "second name":
                    if name:
                        os.link(precious, at)
                    else:
                        continue
                else:
                    os.mkfifo(at)
                done = stage.run(70, "rank 1 is dead")
                what = f"{kind} at slurm/{name}: {done}"
                must(precious.read_text() == "precious" and not list(elsewhere.iterdir()), what)
                must(done.returncode == 74 and str(at) in done.stderr and not stage.requeued(), what)
                # Slurm itself opens the log, whose name contains the number of the job.
                if name == "7.messages":
                    at.rename(notes / "8.log")
                    submitted = stage.submit()
                    must(submitted.returncode == 74 and "8.log: is " in submitted.stderr, f"{kind} at a log: {submitted}")


def command_lines(binary):
    """What srun starts: the same words as on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--set", "run.name=a $(touch hacked) 'b' \"c\"", "--", "--max-steps", "5"])
        stage.run(0)
        words = (stage.folder / "srun.arguments").read_text().splitlines()
        train = words.index(str(binary))
        must(words[train + 1:] == ["train", f"{folder}/run.yaml", "--set", "run.name=a $(touch hacked) 'b' \"c\"", "--max-steps", "5"], f"srun starts {words}")
        must({"--mpi=pmix", "--ntasks=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--wait=60"} <= set(words[:train]), f"srun is called with {words}")
        must(not list(stage.folder.glob("**/hacked")), "a name has reached a shell")
        (stage.folder / "fail_launch").write_text("")
        done = stage.run(0)
        must(done.returncode == 0 and [call[0] for call in stage.calls()].count("srun") == 2, f"a step that could not be started: {done}")
        done = stage.run(0, "srun: error: task 1 launch failed: Unspecified error")
        must(done.returncode == 70 and [call[0] for call in stage.calls()].count("srun") == 3 and stage.requeued(), f"steps that cannot be started: {done}")
        # A later try continues from a checkpoint of the job, whatever the first one resumed; before there is one it does not.
        stage = Stage(folder, binary, ["--", "--resume", "other/checkpoints/step-5", "--change", "data"])
        for new, restart, resumes in (("", 0, True), ("1", 1, True), ("", 2, False)):
            stage.run(75, restart=restart, NEW=new)
            words = (stage.folder / "srun.arguments").read_text().splitlines()
            must(("other/checkpoints/step-5" in words) == resumes and words[-2:] == ["--change", "data"], f"try {restart} starts {words}")
        stage = Stage(folder, binary, ["--array", "3-5", "--set", "run.seed={array}"])
        stage.run(0, SLURM_ARRAY_TASK_ID="4", SLURM_ARRAY_JOB_ID="6")
        words = (stage.folder / "srun.arguments").read_text().splitlines()
        must(words[-4:] == ["--set", "run.seed=4", "--set", "run.directory=runs/r/4"], f"srun starts {words}")
        must('"array": "6_4"' in (stage.run_directory / "4/slurm/jobs.jsonl").read_text(), "the element is not recorded")


def nodes(binary):
    """A node with two failures is excluded, whoever has named it; never more than leave enough."""
    for message in ("rank 1 (host n2.cluster, process 12) has died; ranks (host n1, process 3) wait", "host n2 (ranks 2, 3) is lost",
                    "srun: error: n2: task 1: Killed", "srun: error: n2: tasks 0-1,3: Killed", "srun: error: task 1 launch failed: Unspecified error\nsrun: error: n1: task 0: Killed",
                    "srun: error: Node failure on n2"):
        with tempfile.TemporaryDirectory() as folder:
            stage = Stage(folder, binary)
            stage.run(70, message, NEW="1")
            must(stage.requeued() and not stage.excluded(), f"{message}: excluded after one failure: {stage.calls()}")
            stage.run(70, message, 1, NEW="1")
            must(stage.requeued() and stage.excluded() == ["ExcNodeList=n2"], f"{message}: not excluded after two failures: {stage.calls()}")
            calls = [call[:2] for call in stage.calls()]
            must(calls.index(["scontrol", "requeue"]) < calls.index(["scontrol", "update"]), "a running job cannot be changed")
            stage.run(70, message, 2, NEW="1", BEFORE="n9")
            must(stage.excluded() == ["ExcNodeList=n9,n2"], f"{message}: the user's own nodes: {stage.calls()}")
            stage.run(70, "srun: error: n1: task 0: Killed", 3, NEW="1")
            stage.run(70, "srun: error: n1: task 0: Killed", 4, NEW="1")
            must(stage.requeued() and not stage.excluded(), f"{message}: one node is left for two: {stage.calls()}")
    for message in ("rank 1 (host elsewhere, process 12) has died", "srun: error: n2: task 1: Exited with exit code 70", "host $(touch hacked) is lost"):
        with tempfile.TemporaryDirectory() as folder:
            stage = Stage(folder, binary, ["--strikes", "1"])
            stage.run(70, message, NEW="1")
            must(stage.requeued() and not stage.excluded(), f"{message}: {stage.calls()}")
            must(not list(stage.folder.glob("**/hacked")), "a message has reached a shell")
    # Nodes out of service do not count as enough.
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--strikes", "1"])
        stage.run(70, "srun: error: n2: task 1: Killed", NEW="1", GOOD="n1 n2")
        must(stage.requeued() and not stage.excluded(), f"one node in service is left for two: {stage.calls()}")
    # Tries that Slurm has ended and requeued count, too.
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--requeues", "2"])
        for restart, starts in ((0, 1), (1, 1), (2, 1), (3, 0)):
            stage.run(70, "killed", restart, RESTARTS=str(restart + 1))
            must([call[0] for call in stage.calls()].count("srun") == starts, f"try {restart}: {stage.calls()}")
    # The last element of an array has the job id of the whole array.
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--array", "3-5", "--strikes", "1"])
        stage.run(70, "srun: error: n2: task 1: Killed", NEW="1", SLURM_JOB_ID="6", SLURM_ARRAY_TASK_ID="5", SLURM_ARRAY_JOB_ID="6")
        ids = [call[2:] for call in stage.calls() if call[:2] in (["scontrol", "requeue"], ["scontrol", "update"])]
        must(ids == [["6_5"], ["JobId=6_5", "ExcNodeList=n2"]], f"another element is touched: {ids}")
    # A try without an end: its node is out of service.
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--strikes", "1"])
        (stage.run_directory / "slurm").mkdir(parents=True)
        (stage.run_directory / "slurm/jobs.jsonl").write_text('{"job": "7", "restart": 0, "event": "start", "nodes": "n[1-2]"}\n')
        (stage.folder / "bad_nodes").write_text("n1\nn1\n")
        stage.run(75, "stopped", 1, NEW="1")
        must(stage.excluded() == ["ExcNodeList=n1"], f"a lost node: {stage.calls()}")
        (stage.run_directory / "slurm/7.failed").unlink()
        stage.run(75, "stopped", 2, NEW="1")
        must(not stage.excluded(), "a try that has an end has lost no node")


def submission(binary):
    """The script is kept and given to sbatch; one that sbatch refuses is not."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, ["--time", "2:00:00"])
        must(stage.script.startswith("#!/usr/bin/env bash\n") and "#SBATCH --time=02:00:00\n" in stage.script, stage.script)
        must(not stage.run_directory.exists(), "--dry-run writes")
        (stage.folder / "calls").write_text("")
        done = stage.submit("--time", "2:00:00")
        must(done.returncode == 0 and done.stdout == "7\n" and "submitted job 7" in done.stderr, f"{done}")
        kept = stage.run_directory / "slurm/submit.sbatch"
        must(["sbatch", "--parsable", str(kept)] in stage.calls(), f"{stage.calls()}")
        must(kept.read_text() == stage.script, "the kept script is another one")
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary)
        (stage.folder / "run.yaml").write_text(CONFIG.replace(", directory: runs/r", ""))
        done = stage.submit()
        must(done.returncode == 0 and (stage.folder / "runs/r/slurm/submit.sbatch").exists(), f"without run.directory: {done}")
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary)
        done = stage.submit("--account", "nobody", REFUSE="Invalid account")
        must(done.returncode == 64 and "Invalid account" in done.stderr, f"{done}")
        must(not stage.run_directory.exists(), "something is left of a refused job")
        for options, message in [(["--template", "none.sbatch"], "none.sbatch"), (["--nodes", "3"], "do not divide evenly"), (["--", "--hosts", "x"], "--hosts"),
                                 (["--array", "0-2000"], "MaxArraySize"), (["--time", "1w"], "is not a time")]:
            done = stage.submit(*options)
            must(done.returncode in (64, 66) and message in done.stderr and not stage.run_directory.exists(), f"{options}: {done}")
        (stage.folder / "t").write_text("#!/bin/sh\n{{directives}}\n{{comand}}\n{{command}}\n")
        done = stage.submit("--template", "t")
        must(done.returncode == 64 and "t:3: --template: unknown placeholder {{comand}}" in done.stderr and "nearest {{command}}" in done.stderr, f"{done}")
        (stage.folder / "t").write_text("#!/bin/sh\n{{directives}}\nmodule load openmpi\nexec srun {{srun_options}} {{command}}\n")
        done = stage.submit("--template", "t", "--dry-run")
        must(done.returncode == 0 and "\nmodule load openmpi\nexec srun --mpi=pmix " in done.stdout, f"{done}")
        (stage.folder / "sbatch").unlink()
        done = stage.submit(PATH=str(stage.folder) + ":/usr/bin:/bin") if not pathlib.Path("/usr/bin/sbatch").exists() else None
        must(done is None or (done.returncode == 66 and "sbatch" in done.stderr and not stage.run_directory.exists()), f"{done}")
        done = stage.submit(PATH="/nowhere")
        must(done.returncode == 66 and "login node" in done.stderr, f"{done}")


def main():
    binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/trireme").resolve()
    complaints = []
    for part in (ends, links, command_lines, nodes, submission):
        if sys.argv[2:] and part.__name__ not in sys.argv[2:]:
            continue
        try:
            part(binary)
        except AssertionError as error:
            complaints.append(f"{part.__name__}: {error}")
    if DIVERGED not in (ROOT / "trainer/run/run.cpp").read_text():
        complaints.append(f"the program no longer says {DIVERGED!r}")
    print("\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
