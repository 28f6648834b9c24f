#!/usr/bin/env python3
"""Runs `trireme submit` on a real Slurm, a throw-away cluster of three nodes on this machine (tests/slurm/cluster.sh), and disturbs the jobs. Every run must end
with the losses, gradient norms and checkpoint bytes of one that mpirun has trained undisturbed. Needs root and Slurm (tests/slurm/cluster.sh install).

  tests/slurm/jobs.py                          all cases, about ten minutes
  tests/slurm/jobs.py preempt node             those whose name contains one of the words
  tests/slurm/jobs.py --trials 100 [--seed 1]  random kills at random moments instead, until 100 runs were hit while they trained: ranks, srun,
                                               slurmstepd, the batch script, signals, requeues, preemptions, nodes
  --results FILE --seconds 500                 appends trials to the file and continues what is there; begins no trial after 500 s
Exits with 1 if anything differs, with 77 where Slurm is not installed.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests/slurm/cluster.sh"
NODES = ("node1", "node2", "node3")
STEPS = 24
CONFIG = """run: {name: "it's $(touch hacked)", directory: run, device: cpu}
model: {layers: 2, hidden_size: 16, heads: 2, kv_heads: 2, ffn_size: 32, dropout: 0.1}
parallel: {data: 2, zero_stage: 3}
training:
  steps: %d
  sequence_length: 16
  global_batch_size: 8
  optimizer: {learning_rate: 1.0e-2}
  schedule: {name: cosine, warmup_steps: 2, final_learning_rate: 1.0e-3}
data: {train: [train]}
checkpoint: {every: 4}
resilience: {hang_seconds: 20}
""" % STEPS
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


class Bench:
    """The cluster, and a directory with a configuration and data."""

    def __init__(self, binary, keep):
        self.binary, self.keep = binary, keep
        (ROOT / "runs").mkdir(exist_ok=True)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir=ROOT / "runs"))  # nodes have a /tmp of their own
        self.slurm = self.work / "cluster"
        # More ranks than cores: idle ranks must give theirs away.
        self.environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
        (self.work / "run.yaml").write_text(CONFIG)
        rng = random.Random(1)
        (self.work / "text.txt").write_text("".join(" ".join(rng.choice(CONFIG.split()) for _ in range(12)) + "\n" for _ in range(2000)))
        self.call([binary, "data", "build", "--tokenizer", "bytes", "--output", "train", "text.txt"])
        self.has_accounting = bool(shutil.which("slurmdbd") and shutil.which("mariadbd"))
        self.call([CLUSTER, "start", self.slurm, 3, 4, *(["accounting"] if self.has_accounting else [])])
        self.references, self.pending = {}, {}

    def close(self):
        subprocess.run([CLUSTER, "stop", self.slurm], check=False)
        if self.keep:
            print(f"kept: {self.work}")
        else:
            shutil.rmtree(self.work)

    def call(self, command, code=0):
        done = subprocess.run([str(word) for word in command], cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        if code is not None and done.returncode != code:
            raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def on(self, *command, code=0):
        """Runs a command on the cluster's control host."""
        return self.call([CLUSTER, "run", self.slurm, *command], code)

    def submit(self, run, *options, sets=(), nodes=2):
        words = ["--nodes", nodes, "--cpus-per-rank", "1", *options, "--set", f"run.directory={run}"]
        for one in sets:
            words += ["--set", one]
        return self.on(self.binary, "submit", "run.yaml", *words).stdout.strip()

    def state(self, job):
        """State, reason and number of restarts."""
        text = self.on("scontrol", "show", "job", "-o", job).stdout
        found = re.search(r"JobState=(\S+) Reason=(\S+).*? Restarts=(\d+)", text)
        return found[1], found[2], int(found[3])

    def hurry(self, job):
        """Shortens the two minutes that Slurm lets a requeued job wait to some seconds: a node refuses a job that it has just ended. Only once, as each change
        delays the job, too."""
        text = self.on("scontrol", "show", "job", "-o", job).stdout
        eligible = re.search(r" EligibleTime=(\d\S+)", text)
        if " JobState=PENDING " not in text:
            self.pending.pop(job, None)
        elif eligible and time.mktime(time.strptime(eligible[1], "%Y-%m-%dT%H:%M:%S")) > time.time() + 2 and time.monotonic() > self.pending.setdefault(job, time.monotonic()) + 4:
            self.on("scontrol", "update", f"JobId={job}", "StartTime=now", code=None)

    def finish(self, job, limit=300):
        """Waits for the end of a job. Returns its last state."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            state = self.state(job)[0]
            if state in TERMINAL:
                return state
            self.hurry(job)
            time.sleep(0.5)
        raise AssertionError(f"job {job} has not ended: {self.state(job)}")

    def wait_for_step(self, run, step, limit=100):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if any(line.get("step", 0) >= step for line in self.lines(run)):
                return
            time.sleep(0.05)
        raise AssertionError(f"{run} does not reach step {step}")

    def lines(self, run):
        try:
            text = (self.work / run / "metrics.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def tries(self, run):
        return [json.loads(line) for line in (self.work / run / "slurm/jobs.jsonl").read_text().splitlines()]

    def log(self, run):
        return "".join(path.read_text(errors="replace") for path in sorted((self.work / run / "slurm").glob("*.log")))

    def bits(self, run, steps):
        """Losses and norms as they are written, and the digest of the last checkpoint."""
        text = (self.work / run / "metrics.jsonl").read_text(encoding="utf-8")
        figures = re.findall(r'^\{"step":(\d+),"loss":([^,]+),"grad_norm":([^,]+),', text, re.M)
        digest = hashlib.sha256()
        for path in sorted((self.work / run / f"checkpoints/step-{steps:08d}").glob("*.safetensors")):
            digest.update(path.name.encode() + path.read_bytes())
        return [int(one[0]) for one in figures], figures, digest.hexdigest()

    def reference(self, seed=1234, steps=STEPS):
        if (seed, steps) not in self.references:
            run = f"reference-{seed}-{steps}"
            every = max(4, steps // 40)  # more checkpoints would take longer, and change nothing
            self.call([self.binary, "train", "run.yaml", "--set", f"run.directory={run}", "--set", f"run.seed={seed}", "--set", f"training.steps={steps}",
                       "--set", f"checkpoint.every={every}"])
            self.references[seed, steps] = self.bits(run, steps)
        return self.references[seed, steps]

    def check_bits(self, run, seed=1234, steps=STEPS):
        found, wanted = self.bits(run, steps), self.reference(seed, steps)
        assert found[0] == list(range(1, steps + 1)), f"{run}: steps {found[0]}"
        assert found == wanted, f"{run} differs from the undisturbed run"
        assert not (self.work / "hacked").exists(), "a name has reached a shell"

    def processes(self, job, kind):
        """Process ids, on this host, of a job's ranks, sruns, step daemons, or batch script."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                comm, command = (entry / "comm").read_text().strip(), (entry / "cmdline").read_bytes()
                environment = dict(part.split(b"=", 1) for part in (entry / "environ").read_bytes().split(b"\0") if b"=" in part)
            except OSError:
                continue
            if environment.get(b"SLURM_CONF") != str(self.slurm / "slurm.conf").encode():
                continue
            if kind == "stepd" and command.startswith(f"slurmstepd: [{job}.0]".encode()):
                found.append((0, int(entry.name)))
            if environment.get(b"SLURM_JOB_ID") != job.encode():
                continue
            if kind == "script" and comm in ("bash", "slurm_script") and command.endswith(b"/slurm_script\0"):
                found.append((0, int(entry.name)))
            if (kind == "srun" and comm == "srun") or (kind == "rank" and b"SLURM_PROCID" in environment and b"\0train\0" in command and comm.startswith("trireme")):
                found.append((int(environment.get(b"SLURM_PROCID", b"0")), int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def nodes_of(self, job):
        names = re.search(r" NodeList=(\S*)", self.on("scontrol", "show", "job", "-o", job).stdout)[1]
        return [] if names in ("", "(null)") else self.on("scontrol", "show", "hostnames", names).stdout.split()


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def case_plain(b):
    job = b.submit("plain")
    assert b.finish(job) == "COMPLETED", b.log("plain")
    b.check_bits("plain")
    script = (b.work / "plain/slurm/submit.sbatch").read_text()
    assert "#SBATCH --job-name=it_s___touch_hacked_" in script
    assert [one["event"] for one in b.tries("plain")] == ["start", "end"]


def case_names(b):
    """A directory whose name means much to a shell, and to sbatch."""
    name = "a $(touch hacked) `touch hacked` ; 'x' %j x#1 -- ü"
    job = b.submit(name)
    assert b.finish(job) == "COMPLETED"
    b.check_bits(name)
    assert (b.work / name / f"slurm/{job}.log").exists(), "the log is elsewhere"


def case_array(b):
    job = b.submit("many", "--array", "0-5", sets=["run.seed={array}"], nodes=1)
    for element in range(6):
        assert b.finish(f"{job}_{element}") == "COMPLETED", b.log("many")
        b.check_bits(f"many/{element}", seed=element)
        assert b.tries(f"many/{element}")[0]["array"] == f"{job}_{element}"


def case_array_last(b):
    """The last element has the job id of the whole array. It stops and goes back into the queue, the others do not."""
    job = b.submit("elements", "--array", "0-2", sets=["run.seed={array}"], nodes=1)
    b.wait_for_step("elements/2", 7)
    b.on("scancel", "--signal=TERM", f"{job}_2")
    for element in range(3):
        assert b.finish(f"{job}_{element}") == "COMPLETED", b.log("elements")
        b.check_bits(f"elements/{element}", seed=element)
        codes = [one["code"] for one in b.tries(f"elements/{element}") if one["event"] == "end"]
        assert codes == ([75, 0] if element == 2 else [0]), f"element {element}: {codes}"


def case_sweep(b):
    """Points of two ranks as an array job. A task that is stopped goes back into the queue, a cancelled array ends."""
    (b.work / "sweep.yaml").write_text("base: run.yaml\ndirectory: swept\nobjective: {metric: loss}\naxes: {run.seed: [1, 2, 3]}\nwhere: {place: slurm}\n")
    b.on(b.binary, "sweep", "sweep.yaml")
    job = b.on("sbatch", "--parsable", "--output=sweep.log", "swept/array.sbatch").stdout.strip()
    for element in range(3):
        assert b.finish(f"{job}_{element}") == "COMPLETED", (b.work / "sweep.log").read_text(errors="replace")
    table = b.on(b.binary, "sweep", "sweep.yaml", "--json").stdout
    assert table.count('"state": "done"') == 3, table
    (b.work / "again.yaml").write_text("base: run.yaml\ndirectory: again\nobjective: {metric: loss}\nset: {training.steps: 100000}\naxes: {run.seed: [1, 2, 3]}\nwhere: {place: slurm}\n")
    b.on(b.binary, "sweep", "again.yaml")
    job = b.on("sbatch", "--parsable", "--output=again.log", "again/array.sbatch").stdout.strip()
    deadline = time.monotonic() + 60
    while b.state(f"{job}_0")[0] != "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(5)
    b.on("scancel", job)
    for element in range(3):
        assert b.finish(f"{job}_{element}") == "CANCELLED", (b.work / "again.log").read_text(errors="replace")


def case_chain(b):
    first = b.submit("first")
    second = b.submit("second", "--after", first)
    assert "Dependency=afterok:" + first in b.on("scontrol", "show", "job", "-o", second).stdout
    assert b.finish(first) == "COMPLETED" and b.finish(second) == "COMPLETED"
    assert b.tries("second")[0]["time"] >= b.tries("first")[-1]["time"], "the second has not waited for the first"
    b.check_bits("second")
    # After a job that fails the next one does not start.
    bad = b.submit("bad", sets=["data.train=[nowhere]"])
    never = b.submit("never", "--after", bad)
    assert b.finish(bad) == "FAILED" and b.finish(never) == "CANCELLED"
    assert not (b.work / "never/metrics.jsonl").exists()
    assert [one.get("code") for one in b.tries("bad")] == [None, 66], b.tries("bad")


def case_preemption(b):
    steps = 40 * STEPS  # some seconds on a fast machine
    job = b.submit("preempted", "--partition", "low", sets=[f"training.steps={steps}"])
    b.wait_for_step("preempted", 7)
    high = b.on("sbatch", "--parsable", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap", "sleep 2").stdout.strip()
    assert b.finish(high) == "COMPLETED"
    assert b.finish(job) == "COMPLETED", b.log("preempted")
    b.check_bits("preempted", steps=steps)
    codes = [one["code"] for one in b.tries("preempted") if one["event"] == "end"]
    assert codes == [75, 0], codes


def case_time_limit(b):
    begin = time.monotonic()
    b.reference()
    steps = int(STEPS * max(3, 60 / max(time.monotonic() - begin, 1)))  # about a minute and more
    steps = min(steps, 1500)
    job = b.submit("limited", "--time", "1", sets=[f"training.steps={steps}"])
    assert b.finish(job, 900) == "COMPLETED", b.log("limited")
    b.check_bits("limited", steps=steps)
    codes = [one["code"] for one in b.tries("limited") if one["event"] == "end"]
    assert codes[0] == 75 and codes[-1] == 0 and set(codes) == {75, 0}, codes


def case_signal(b):
    job = b.submit("signalled")
    b.wait_for_step("signalled", 7)
    b.on("scancel", "--signal=TERM", job)
    assert b.finish(job) == "COMPLETED", b.log("signalled")
    b.check_bits("signalled")
    assert [one["code"] for one in b.tries("signalled") if one["event"] == "end"] == [75, 0]


def case_cancel(b):
    job = b.submit("cancelled")
    b.wait_for_step("cancelled", 7)
    b.on("scancel", job)
    assert b.finish(job) == "CANCELLED"
    end = b.tries("cancelled")[-1]
    assert (end["event"], end["code"], end["next"]) == ("end", 75, "ends"), end
    saved = (b.work / "cancelled/checkpoints/latest").resolve().name
    assert int(saved[5:]) >= 7, f"scancel has saved {saved}"
    assert b.state(job)[2] == 0, "a cancelled job is requeued"
    again = b.submit("cancelled")
    assert b.finish(again) == "COMPLETED"
    b.check_bits("cancelled")


def case_figures(b):
    """What Slurm says about a job that was requeued, in `trireme goodput` and in the report, on the cluster and where there is no Slurm."""
    job = b.submit("figures", sets=[f"training.steps={40 * STEPS}"])  # Slurm measures memory once a second
    b.wait_for_step("figures", 7)
    b.on("scontrol", "requeue", job)
    assert b.finish(job) == "COMPLETED", b.log("figures")
    deadline = time.monotonic() + 60
    while True:  # slurmdbd learns about the end a moment later
        found = json.loads(b.on(b.binary, "goodput", "figures", "--json").stdout)
        if not b.has_accounting or found["slurm_jobs"][-1]["state"] == "COMPLETED" or time.monotonic() > deadline:
            break
        time.sleep(1)
    jobs = found["slurm_jobs"]
    assert [(one["job"], one["restart"], one["partition"], one["cpus"]) for one in jobs] == [(job, 0, "low", 2), (job, 1, "low", 2)], jobs
    assert all(one["queued_seconds"] >= 0 and one["elapsed_seconds"] > 0 for one in jobs if b.has_accounting), jobs
    if b.has_accounting:
        assert found["slurm_note"] is None, found["slurm_note"]
        assert [one["state"] for one in jobs] == ["REQUEUED", "COMPLETED"] and [one["exit_code"] for one in jobs] == ["75", "0"], jobs
        assert jobs[1]["max_rss_bytes"] > 1e6, jobs
    else:
        assert "accounting" in found["slurm_note"], found["slurm_note"]
    b.on(b.binary, "report", "figures", "--output", "figures.html")
    assert "<h2>Slurm jobs</h2>" in (b.work / "figures.html").read_text() and "<td>COMPLETED</td>" in (b.work / "figures.html").read_text()
    # Elsewhere only what the run has recorded is known.
    done = subprocess.run([b.binary, "goodput", "figures", "--json"], cwd=b.work, env={**b.environment, "PATH": "/nowhere"}, capture_output=True, text=True, check=True)
    alone = json.loads(done.stdout)
    assert "sacct was not found in PATH" in alone["slurm_note"], alone
    assert [(one["restart"], one["cpus"], one["queued_seconds"]) for one in alone["slurm_jobs"]] == [(one["restart"], one["cpus"], one["queued_seconds"]) for one in jobs], alone


def case_requeue(b):
    job = b.submit("requeued")
    b.wait_for_step("requeued", 7)
    b.on("scontrol", "requeue", job)
    assert b.finish(job) == "COMPLETED", b.log("requeued")
    b.check_bits("requeued")
    assert b.state(job)[2] == 1


def case_node_down(b):
    job = b.submit("down")
    b.wait_for_step("down", 7)
    node = b.nodes_of(job)[1]
    b.on("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    b.on("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")  # else it returns when its slurmd reports
    time.sleep(2)
    try:
        assert b.finish(job) == "COMPLETED", b.log("down")
        b.check_bits("down")
        assert node not in b.on("scontrol", "show", "hostnames", b.tries("down")[-2]["nodes"]).stdout.split()
        assert b.state(job)[2] == 1
    finally:
        b.on("scontrol", "update", f"NodeName={node}", "State=RESUME")


def case_node_lost(b):
    """The node of the batch script and of rank 0 loses its power."""
    job = b.submit("lost")
    b.wait_for_step("lost", 7)
    node = b.nodes_of(job)[0]
    b.call([CLUSTER, "lose", b.slurm, node])
    try:
        time.sleep(8)
        assert b.finish(job) == "COMPLETED", b.log("lost")
        b.check_bits("lost")
        failed = (b.work / f"lost/slurm/{job}.failed").read_text().split()
        assert failed == [node], f"failures are counted for {failed}, not for {node}"
    finally:
        b.call([CLUSTER, "boot", b.slurm, node])


def case_bad_node(b):
    """A rank dies twice on the same node: the third try must avoid it."""
    b.on("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=test")  # so that the second try has the same nodes
    job = b.submit("struck", "--strikes", "2", sets=["checkpoint.every=3"])
    bad, step = "node2", 5
    for _ in range(2):
        b.wait_for_step("struck", step)
        assert bad in b.nodes_of(job), b.nodes_of(job)
        kill(b.processes(job, "rank")[b.nodes_of(job).index(bad)])
        step += 8
        deadline = time.monotonic() + 300
        while b.state(job)[0] == "RUNNING" and time.monotonic() < deadline:
            time.sleep(0.2)
        if step > 13:
            b.on("scontrol", "update", "NodeName=node3", "State=RESUME")
        while b.state(job)[0] in ("PENDING", "COMPLETING") and time.monotonic() < deadline:
            b.hurry(job)
            time.sleep(0.5)
    assert b.finish(job) == "COMPLETED", b.log("struck")
    b.check_bits("struck")
    assert f"excluded from now on: {bad}" in b.log("struck"), b.log("struck")
    last = [one for one in b.tries("struck") if one["event"] == "start"][-1]
    assert bad not in b.on("scontrol", "show", "hostnames", last["nodes"]).stdout.split()


def case_elastic(b):
    """An elastic job that mpirun started in the allocation loses a node, and continues on the others with the same losses."""
    sets = ["training.precision=fp64", "parallel.tensor=1", "parallel.pipeline=1", "parallel.data=3", "parallel.zero_stage=3", "training.global_batch_size=6",
            "resilience.elastic=replicas", "resilience.hang_seconds=5", "checkpoint.every=3", "training.steps=40"]
    words = [word for one in sets for word in ("--set", one)]
    train = " ".join([str(b.binary), "train", "run.yaml", *words])
    options = ["--parsable", "--no-kill", "--nodes=3", "--ntasks-per-node=1", "--output=elastic.log"]
    job = b.on("sbatch", *options, f"--wrap={train} --restarts 5 --set run.directory=elastic").stdout.strip()
    b.wait_for_step("elastic", 7)
    node = b.nodes_of(job)[-1]
    b.call([CLUSTER, "lose", b.slurm, node])
    try:
        log = b.work / "elastic.log"
        assert b.finish(job) == "COMPLETED", log.read_text(errors="replace")
        assert "using 2 of 3 ranks on 2 hosts" in log.read_text(errors="replace"), log.read_text(errors="replace")
    finally:
        b.call([CLUSTER, "boot", b.slurm, node])
    b.call([b.binary, "train", "run.yaml", *words, "--set", "run.directory=elastic-whole"])
    losses = [{line["step"]: line["loss"] for line in b.lines(run) if "loss" in line} for run in ("elastic", "elastic-whole")]
    assert list(losses[0]) == list(range(1, 41)), losses[0]
    worst = max(abs(losses[0][step] - losses[1][step]) / abs(losses[1][step]) for step in losses[1])
    assert worst < 1e-10, worst


def case_refused(b):
    """Bad input ends with 64 and writes nothing, also where only sbatch knows that it is bad."""
    before = sorted(str(path) for path in b.work.iterdir())
    for words, message in [(["--partition", "lo"], "nearest low"), (["--time", "2-0"], "over the limit of partition low"), (["--time", "1x"], "is not a time"),
                           (["--nodes", "4", "--set", "parallel.data=4"], "4 nodes"), (["--nodes", "3"], "do not divide evenly"), (["--array", "5-1"], "--array"),
                           (["--partition", "short", "--nodes", "3", "--set", "parallel.data=3", "--set", "training.global_batch_size=9"], "MaxNodes"),
                           (["--ranks-per-node", "5"], "4 CPUs"), (["--after", "x"], "no job id"), (["--set", "run.device=cuda"], "has GPUs"),
                           (["--set", "run.seed={array}"], "allowed with --array"), (["--set", "run.nonsense=1"], "unknown"),
                           (["--after", "99999", "--qos", "none\nsuch"], "cannot be written"), (["--", "--nonsense"], "--nonsense"),
                           (["--", "--set", "run.seed=1"], "stands behind --")]:
        done = b.on(b.binary, "submit", "run.yaml", "--set", "run.directory=nothing", *words, code=None)
        assert done.returncode == 64, f"{words}: exit code {done.returncode}: {done.stderr}"
        assert message in done.stderr, f"{words}: {done.stderr}"
    done = b.on(b.binary, "submit", "run.yaml", "--set", "run.directory=nothing", "--set", "parallel.data=1", "--partition", "low", "--output", "x" * 3000, code=None)
    assert (done.returncode == 64) == (not (b.work / "nothing").exists()), "what sbatch has refused is left"
    assert sorted(str(path) for path in b.work.iterdir() if path.name != "nothing") == before
    done = subprocess.run([b.binary, "submit", "run.yaml"], cwd=b.work, env={**b.environment, "PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.returncode == 66 and "login node" in done.stderr, done.stderr


class Trial:
    """A run of one job that is disturbed at random moments. An attack counts if the run was in the middle of its steps, and had to be started again."""

    KINDS = ("rank", "task", "srun", "stepd", "script", "term", "requeue", "preempt", "down", "lose")

    def __init__(self, b, number, seed, steps):
        self.b, self.steps, self.run, self.rng = b, steps, f"trial-{number}", random.Random(seed)
        self.effective, self.without_effect, self.restarts = [], [], 0
        self.submit()

    def submit(self):
        sets = [f"training.steps={self.steps}", f"checkpoint.every={max(4, self.steps // 40)}"]
        self.job = self.b.submit(self.run, "--requeues", "10", "--template", "trial.sbatch", sets=sets)

    def newest_step(self):
        return max([line.get("step", 0) for line in self.b.lines(self.run)[-3:]] or [0])

    def starts(self):
        """How often the run has begun to train, by its own record."""
        try:
            return (self.b.work / self.run / "jobs.jsonl").read_text().count('"event":"start"')
        except FileNotFoundError:
            return 0

    def wait_until(self, is_true, limit=900):
        """False if the job ends before."""
        deadline, next_look = time.monotonic() + limit, 0
        while not is_true():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.run}: nothing has happened within {limit} s: {self.b.state(self.job)}")
            if time.monotonic() > next_look:
                next_look = time.monotonic() + 0.5
                if self.b.state(self.job)[0] in TERMINAL:
                    return False
                self.b.hurry(self.job)
            time.sleep(0.01)
        return True

    def attack(self, kind):
        step = self.rng.randrange(1, self.steps * 3 // 4)
        if not self.wait_until(lambda: self.newest_step() >= step):
            return
        time.sleep(self.rng.random() * 0.2)
        seen = self.newest_step()
        trains, starts = 0 < seen < self.steps and len(self.b.processes(self.job, "rank")) == 2, self.starts()
        self.hit(kind)
        again = self.wait_until(lambda: self.starts() > starts)
        if not again and kind == "script" and self.b.state(self.job)[0] == "FAILED":  # nothing is left that could requeue the job
            self.submit()
            again = self.wait_until(lambda: self.starts() > starts)
        self.restarts += again
        (self.effective if trains and again else self.without_effect).append(f"{kind} after step {seen}")

    def hit(self, kind):
        b, job = self.b, self.job
        if kind in ("rank", "srun", "stepd", "script"):
            victims = b.processes(job, kind)
            if victims:
                kill(self.rng.choice(victims))
        elif kind == "task":
            b.on("scancel", "--signal=KILL", f"{job}.0", code=None)
        elif kind == "term":
            b.on("scancel", "--signal=TERM", job, code=None)
        elif kind == "requeue":
            b.on("scontrol", "requeue", job, code=None)
        elif kind == "preempt":
            b.on("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap", "true")
        else:
            node = self.rng.choice(b.nodes_of(job) or NODES)
            if kind == "down":
                b.on("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=trial")
                time.sleep(1)
                b.on("scontrol", "update", f"NodeName={node}", "State=RESUME", code=None)
            else:
                b.call([CLUSTER, "lose", b.slurm, node])
                time.sleep(self.rng.choice([1, 8]))
                b.call([CLUSTER, "boot", b.slurm, node])


def trial_steps(b, run):
    """A number of steps that takes about four seconds at the speed of `run`, from a short list, as each needs a run to compare with."""
    times = sorted(line["step_seconds"] for line in b.lines(run) if "loss" in line)
    return next(steps for steps in (25, 50, 100, 200, 400, 800, 1600, 3200) if steps == 3200 or 1.5 * steps * times[len(times) // 2] > 4)


def trials(b, count, seed, results, limit):
    """Runs until `count` trials have been disturbed while they trained. Appends each trial to the file `results`, and continues what is there."""
    begin = time.monotonic()
    records = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    b.reference(steps=25)
    steps = trial_steps(b, "reference-1234-25")
    # A step daemon that does not notice the death of its task is given up after 8 s instead of a minute.
    text = b.call([b.binary, "submit", "--print-template"]).stdout
    assert text.count("({{srun_options}})") == 1
    (b.work / "trial.sbatch").write_text(text.replace("({{srun_options}})", "({{srun_options}} --wait=8)"))
    while sum(bool(one["effective"]) for one in records) < count and len(records) < 3 * count and time.monotonic() - begin < limit:
        number, start = len(records), time.monotonic()
        trial = Trial(b, number, seed * 100003 + number, steps)
        error = ""
        try:
            for _ in range(trial.rng.choice([1, 1, 1, 2])):
                trial.attack(trial.rng.choice(Trial.KINDS))
            state = b.finish(trial.job, 900)
            assert state == "COMPLETED", f"{trial.run} has ended as {state}"
            b.check_bits(trial.run, steps=steps)
        except (AssertionError, OSError, subprocess.SubprocessError) as failure:
            error = str(failure)
            next_steps = steps
            print(f"{trial.run}: {error}\n{b.log(trial.run)[-3000:]}", file=sys.stderr)
            b.on("scancel", "--signal=KILL", trial.job, code=None)
            b.on("scancel", trial.job, code=None)
            shutil.move(b.work / trial.run, f"{results}-{trial.run}")
        else:
            next_steps = trial_steps(b, trial.run)
            shutil.rmtree(b.work / trial.run)
        record = {"trial": number, "seed": seed * 100003 + number, "steps": steps, "effective": trial.effective, "without_effect": trial.without_effect,
                  "restarts": trial.restarts, "seconds": round(time.monotonic() - start, 1), "error": error}
        records.append(record)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)
        steps = next_steps
    kinds = {}
    for one in [hit for record in records for hit in record["effective"]]:
        kinds[one.split()[0]] = kinds.get(one.split()[0], 0) + 1
    effective, different = [one for one in records if one["effective"]], sum(bool(one["error"]) for one in records)
    print(f"{len(effective)} of {count} trials disturbed while they trained, {len(records) - len(effective)} others; {sum(kinds.values())} disturbances {kinds}, "
          f"{sum(one['restarts'] for one in records)} restarts, {different} different, {sum(one['seconds'] for one in records) / max(1, len(records)):.0f} s each")
    return different + (len(effective) < count)


def cases(b, words):
    failed = 0
    for name, case in [(name[5:], value) for name, value in globals().items() if name.startswith("case_")]:
        if words and not any(word in name for word in words):
            continue
        begin = time.monotonic()
        try:
            case(b)
            print(f"{name}: ok, {time.monotonic() - begin:.0f} s", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--binary", default=ROOT / "build/trireme")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path, help="file of the trials, to be continued; a file in the work directory by default")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after this time")
    parser.add_argument("--keep", action="store_true", help="keep the work directory")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("slurmctld") or not shutil.which("slurmd"):
        print("skipped: needs root and Slurm (tests/slurm/cluster.sh install)")
        return 77
    bench = Bench(pathlib.Path(arguments.binary).resolve(), arguments.keep)
    try:
        if arguments.trials:
            results = (arguments.results or bench.work / "trials.jsonl").resolve()
            failed = trials(bench, arguments.trials, arguments.seed, results, arguments.seconds)
        else:
            failed = cases(bench, arguments.words)
    finally:
        bench.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
