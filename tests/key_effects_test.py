#!/usr/bin/env python3
"""Asks of every key of the schema, in each of several configurations, what another value of it does: it changes something that can be seen (the lists of a step, the
forecast, or what a run trains, records and writes), or it is refused, or a note says that it has no effect here. A key that does none of these is ignored, and fails.
  tests/key_effects_test.py [BINARY] [--all] [--verbose] [KEY...]     --all: also the configurations of several ranks; KEY: those that contain it"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
OPTIONS = {word for word in sys.argv[1:] if word.startswith("--")}
WORDS = [word for word in sys.argv[1:] if not word.startswith("--")]
BINARY = os.path.abspath(WORDS[0] if WORDS else ROOT / "build/trireme")
WANTED = WORDS[1:]
OK, USAGE = 0, 64

BASE = """\
run: {name: keys, directory: RUN, device: cpu}
model: {layers: 4, hidden_size: 16, heads: 4, kv_heads: 4, ffn_size: 32, vocab_size: 256}
training:
  steps: 4
  sequence_length: 16
  micro_batch_size: 2
  global_batch_size: 16
  optimizer: {learning_rate: 1.0e-2}
  evaluate: {every: 2, batches: 1}
data: {train: [train, more], validation: [validation]}
checkpoint: {every: 2, keep: 1}
"""
# One rank, and layouts in which more keys have something to decide. Each is trained.
CONFIGURATIONS = {
    "one rank": {},
    "data 2, ZeRO-3": {"parallel.data": 2, "parallel.zero_stage": 3, "training.gradient_clip": 0.5},
    "tensor 2 x pipeline 2 in bf16": {"parallel.tensor": 2, "parallel.pipeline": 2, "training.precision": "bf16"},
    "islands": {"parallel.islands": 2, "training.local.steps": 2},
}
# Values for keys whose schema does not say what they mean, and better ones where the next legal value is neutral.
VALUES = {
    "run.directory": ["OTHER"],
    "model.attention_scale": ["0.3"],  # 0.5 is that of heads of 4 elements
    "model.frozen": ["[blocks.0.*]"],
    "adapter.targets": ["[query]"],
    "model.window_layers": ["[0]"],
    "parallel.layers_per_stage": ["[4]", "[1,3]"],
    "parallel.schedule_file": ["/nonexistent"],
    "parallel.bucket_size": [1000000],
    "training.initial_weights": ["none/such"],
    "training.schedule.warmup_steps": [2],
    "training.recompute_budget": [1000000],
    "training.logits_chunk": [8],
    "data.tokenizer": ["/nonexistent"],
    "data.train": ["[more]"],
    "data.weights": ["[1,3]"],
    "data.validation": ["[more]"],
    "checkpoint.every": [1],
    "checkpoint.keep": [2],
    "checkpoint.keep_every": [2],
    "resilience.reroute": ["[1/0]"],
    "resilience.peer_directory": ["/tmp"],
    "kernels.tuning_file": ["/nonexistent"],
    "kernels.cpu_isa": ["portable"],
    "plan.cluster": ["H100"],
    "observe.prometheus.port": [39471],
    "observe.tensorboard": ["true"],
    "observe.samples.prompts": ["[ab]"],
    "security.privacy.key_file": ["key"],
    "security.key_file": ["key"],
}
# Keys that decide about what four quiet steps on one machine do not have: a failure, a full memory, another place. Here stand the tests that show their effect.
SHOWN_ELSEWHERE = {
    "run.name": "config: resolve fills every auto",
    "parallel.overlap": "overlap: prefetched gathers expose only what compute does not cover",
    "resilience.replica_check_every": "replicas agree after training in fp32, and one bit on one rank is found and named",
    "training.max_rejected_steps": "rejected steps: only consecutive ones reach the limit, and an accepted step resets the count",
    "checkpoint.asynchronous": "checkpoint: an asynchronous save contains the values at the time of the call",
    "resilience.restarts": "restart: a run of one rank",
    "resilience.hang_seconds": "death: a stopped rank, and one that hangs while its other threads run, are named",
    "resilience.mean_time_between_failures": "save interval: the rate of failures is learned over all jobs, and a day is assumed before the first",
    "plan.must_fit": "train: a run that does not fit on this machine is refused before anything is written",
    "plan.memory_margin": "memory: a peak within the margin is tight, and one beyond the device does not fit",
    "observe.print_every": "console: a log has every N-th step, the first and the last",
    "observe.black_box": "black box: the reader has what Progress has",
    "observe.prometheus.port": "observe: every sink on two ranks, killed and resumed, with the bits of a run without sinks",
    "observe.prometheus.textfile": "observe: every sink on two ranks, killed and resumed, with the bits of a run without sinks",
    "observe.anomalies.window": "anomalies: no step is judged before the window is full",
    "observe.anomalies.z": "anomalies: a limit lies z robust deviations of the logarithm above the median",
}

TIMES = re.compile(r"seconds|_per_second|tflops|mfu|time|resident|available|host_|bytes_sent_wall|version|digest|date|stamp|pid|commit")


def normal(value):
    """A JSON value without what differs between two runs of the same configuration."""
    if isinstance(value, dict):
        return {key: normal(part) for key, part in value.items() if not TIMES.search(key)}
    if isinstance(value, list):
        return [normal(part) for part in value]
    return value


class Folder:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI_", "PMIX_"))} | {"OMP_NUM_THREADS": "1"}
        (self.path / "run.yaml").write_text(BASE)
        for name, text in {"train": "It is a truth", "more": "universally acknowledged", "validation": "that a single man"}.items():
            (self.path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{text} {i} times"}) + "\n" for i in range(400)))
            assert self.run("data", "build", "--output", name, f"{name}.jsonl").returncode == OK
        (self.path / "key").write_bytes(bytes(range(32)))
        (self.path / "key").chmod(0o600)

    def run(self, *words):
        return subprocess.run([BINARY, *words], cwd=self.path, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)

    def command(self, words, sets):
        return self.run(*words, *(word for key, value in sets.items() for word in ("--set", f"{key}={value}")))

    def values(self, sets):
        """The values of the resolved configuration, as texts."""
        return dict(re.findall(r"(?m)^([a-z_0-9.]+) = (.*?)    #", self.command(["config", "explain", "run.yaml"], sets).stdout))

    def looks(self, sets):
        """(name, digest) of everything that can be seen without a run."""
        for name, words in (("lists", ["config", "actions", "--lowered", "run.yaml"]), ("forecast", ["plan", "run.yaml", "--json"])):
            result = self.command(words, sets)
            text = re.sub(r"# .*\n", "", result.stdout) if name == "lists" else json.dumps(normal(json.loads(result.stdout or "{}")) | {"seconds": re.findall(r'"step_seconds": ?([0-9.e-]+)', result.stdout)})
            yield name, f"{result.returncode} {text}"

    def trains(self, sets, name):
        """What a run says, records and leaves."""
        directory = self.path / name
        result = self.command(["train", "run.yaml"], {"run.directory": name} | sets)
        words = re.sub(r"[0-9][-+0-9.e]*", "", re.sub(r"(?m)^note: .*", "", result.stdout + result.stderr).replace(name, ""))
        seen = {"exit code": result.returncode, "printed": sorted(words.splitlines()), "files": sorted(re.sub(r"tfevents.*", "tfevents", str(p.relative_to(directory))) for p in directory.rglob("*") if "logs/" not in str(p))}
        for line in (directory / "metrics.jsonl").read_text().splitlines() if (directory / "metrics.jsonl").exists() else []:
            event = json.loads(line)
            kind = event.get("event", "validation" if "validation_loss" in event else "step")
            seen.setdefault(f"event {kind}", []).append(normal(event))
        for manifest in sorted(directory.glob("checkpoints/step-*/manifest.json")):
            content = json.loads(manifest.read_text())
            content.pop("config", None)
            seen[manifest.parent.name] = hashlib.sha256(json.dumps(normal(content), sort_keys=True).encode()).hexdigest()
            for tensor in sorted(manifest.parent.glob("*.safetensors")):
                seen[f"{manifest.parent.name}/{tensor.name}"] = hashlib.sha256(tensor.read_bytes()).hexdigest()
        shutil.rmtree(directory, ignore_errors=True)
        return seen


def leaves(node, path=""):
    for key, part in node.get("properties", {}).items():
        name = f"{path}.{key}" if path else key
        if "properties" in part:
            yield from leaves(part, name)
        elif name != "include":
            yield name, part


def candidates(key, schema, now):
    """Other values than `now`, the likeliest to be legal and to matter first."""
    if key in VALUES:
        return [value for value in VALUES[key] if str(value) != now]
    values = []
    for kind in schema.get("anyOf", [schema]):
        number = float(now) if re.fullmatch(r"[-+0-9.e]+", now or "") else 0
        if "enum" in kind:
            values += kind["enum"]
        elif kind.get("type") == "boolean":
            values += ["true", "false"]
        elif kind.get("type") == "integer":
            values += [value for value in (int(number) * 2, int(number) + 1, int(number) // 2, 2, 1) if kind.get("minimum", 0) <= value <= kind.get("maximum", 1 << 60)]
        elif kind.get("type") == "number":
            values += [number * 0.5, number * 2] if number else [0.5]
        elif kind.get("type") == "string":
            values.append("other")
    return [value for value in dict.fromkeys(values) if str(value) not in (now, "auto")]  # auto gives the value that is there


def ask(folder, key, schema, sets, base, number):
    """(verdict, detail) for `key` in the configuration `sets`."""
    refusals, ignored = [], []
    for value in candidates(key, schema, base["values"].get(key)):
        changed = sets | {key: value}
        shown = folder.command(["config", "show", "run.yaml"], changed)
        if shown.returncode != OK:
            refusals.append(shown)
            continue
        if re.search(rf"note: .*\b{re.escape(key)}=.*has no effect", shown.stderr):
            return "note", value
        for name, seen in folder.looks(changed):
            if seen != base[name]:
                return "effect", f"{value}: {name}"
        trained = folder.trains(changed, f"run-{number}")
        if trained["exit code"] == USAGE:
            refusals.append(None)
            continue
        for name in trained.keys() | base["run"].keys():
            if trained.get(name) != base["run"].get(name) and name not in base["noisy"]:
                return "effect", f"{value}: {name}"
        ignored.append(str(value))
        if key in SHOWN_ELSEWHERE:
            return "elsewhere", SHOWN_ELSEWHERE[key]
    if ignored:
        return "ignored", " ".join(ignored)
    if refusals:
        return "refused", refusals[0].stderr.strip() if refusals[0] else "by train"
    return "ignored", "no other value"


def main():
    names = subprocess.run(["grep", "-rhoP", r'^TEST_CASE\("\K[^"]*', str(ROOT / "tests")], capture_output=True, text=True).stdout.split("\n")
    failed = 0
    for key, test in SHOWN_ELSEWHERE.items():
        if test not in names:
            failed += 1
            print(f"{key}: there is no test \"{test}\"")
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(name)
        keys = [(key, schema) for key, schema in leaves(json.loads(folder.run("config", "schema").stdout)) if not WANTED or any(word in key for word in WANTED)]
        for configuration, sets in list(CONFIGURATIONS.items())[: None if "--all" in OPTIONS else 1]:
            base = dict(folder.looks(sets)) | {"values": folder.values(sets)}
            base["run"], again = folder.trains(sets, "base"), folder.trains(sets, "again")
            assert base["run"]["exit code"] == OK, (configuration, folder.command(["train", "run.yaml"], sets | {"run.directory": "base"}).stderr)
            base["noisy"] = {part for part in again if again[part] != base["run"].get(part)}
            if base["noisy"]:
                print(f"{configuration}: differs between two runs: {sorted(base['noisy'])}")
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                found = list(pool.map(lambda item: ask(folder, *item[1], sets, base, item[0]), enumerate(keys)))
            counts = {}
            for (key, _), (verdict, detail) in zip(keys, found):
                counts[verdict] = counts.get(verdict, 0) + 1
                failed += verdict == "ignored"
                if verdict == "ignored" or "--verbose" in OPTIONS:
                    print(f"{configuration}: {verdict}: {key}: {str(detail)[:160]}")
            print(f"{configuration}: {len(keys)} keys: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts)))
    sys.exit(1 if failed else 0)


main()
