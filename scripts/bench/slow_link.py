#!/usr/bin/env python3
"""Steps of the quickstart's model on two hosts with a slow link between them, for each compression of gradients and for local updates, beside the
forecast of `plan`.

  scripts/bench/slow_link.py [MEGABITS [STEPS]]      20 Mbit/s and 12 steps by default; about four minutes. Needs root, ip, tc, two idle cores

The hosts are two network namespaces of this machine with one core and one data rank each, and the link is a pair of virtual interfaces whose rate is
limited in both directions. The forecasts use the figures that `bench machine` measures on one core. Run it with the data that ./scripts/quickstart.sh
prepares. Prints the median step of each method without the first two, for local updates the mean of the second round, its tokens per second relative to
those of plain training, and the forecast of the same step for two such hosts.
Plain training and all methods use parallel.collectives: auto; `library` is plain training with MPI's own all-reduce. Exit code 1 if a forecast but that
of the library is wrong by more than 20 %.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from quickstart_run import lines_of, settings

ROUNDS = {"parallel.data": 1, "parallel.islands": 2, "training.local.steps": 50}
METHODS = {
    "plain": {},
    "library": {"parallel.collectives": "library"},
    "int8": {"training.compression.method": "int8"},
    "int4": {"training.compression.method": "int4"},
    "top_k": {"training.compression.method": "top_k"},
    "DiLoCo": ROUNDS,
    "streaming": {**ROUNDS, "training.local.fragments": 2, "training.local.delay": 10, "training.local.blend": 0.5},
}
# One packet of 1500 bytes carries 1448 bytes of a message and takes 1514 on the link.
PAYLOAD = 1448 / 1514
COMMON = {
    "parallel.collectives": "auto",
    "parallel.tensor": 1, "parallel.pipeline": 1, "parallel.sequence_parallel": "false", "parallel.data": 2, "parallel.zero_stage": 0,
    "training.schedule.warmup_steps": 1, "training.evaluate.every": 0, "checkpoint.every": 0, "plan.must_fit": "false",
}


class TwoHosts:
    """Hosts a and b; the launcher runs on a and starts ranks on b through a replacement for ssh."""

    def __init__(self, directory, megabits):
        self.names = [f"trireme-{os.getpid()}{host}" for host in "ab"]
        self.directory, self.megabits = pathlib.Path(directory), megabits

    def __enter__(self):
        links = [f"tr{os.getpid()}{host}" for host in "ab"]
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", links[0], "netns", self.names[0], "type", "veth", "peer", "name", links[1], "netns", self.names[1])
        for name, link, address in zip(self.names, links, ("10.231.8.1", "10.231.8.2")):
            self.ip("-n", name, "addr", "add", address + "/24", "dev", link)
            for device in ("lo", link):
                self.ip("-n", name, "link", "set", device, "up")
            self.ip("netns", "exec", name, "tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate", f"{self.megabits}mbit", "burst", "64kb", "latency", "20s")
        self.file = self.directory / "hosts"
        self.file.write_text("10.231.8.1 slots=1\n10.231.8.2 slots=1\n")
        self.agent = self.directory / "agent.sh"
        self.agent.write_text(f"#!/bin/sh\nshift\nexec {self.on(1)} sh -c \"$*\"\n")
        self.agent.chmod(0o755)
        return self

    def on(self, host):
        return f"ip netns exec {self.names[host]} taskset -c {host} unshare --uts sh -c 'hostname slow-{'ab'[host]}; exec \"$@\"' shell"

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def run(self, *words):
        environment = {
            **os.environ, "OMPI_MCA_plm_rsh_agent": str(self.agent), "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        subprocess.run(["sh", "-c", f"{self.on(0)} \"$@\"", "sh", *words], check=True, stdout=subprocess.DEVNULL, env=environment)

    def train(self, directory, sets):
        self.run("build/trireme", "train", "configs/quickstart.yaml", "--hosts", str(self.file), *settings({**sets, "run.directory": directory}))
        seconds = [line["step_seconds"] for line in lines_of(directory) if "loss" in line]
        round_steps = sets.get("training.local.steps")
        return statistics.fmean(seconds[round_steps:2 * round_steps]) if round_steps else statistics.median(seconds[2:])

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def measure_core(cluster, megabits):
    """Writes a cluster file of two hosts with one core each and the link between them."""
    subprocess.run(["taskset", "-c", "0", "build/trireme", "bench", "machine", "--output", str(cluster)], check=True, stdout=subprocess.DEVNULL)
    lines, section = [], None
    for line in cluster.read_text().splitlines():
        section = line if not line.startswith(" ") else section
        if section.split(":")[0] not in ("nodes", "network"):
            lines.append(line)
    network = f"network: {{bandwidth: {megabits * 1e6 / 8 * PAYLOAD}, latency: 1.0e-4}}"
    cluster.write_text("\n".join([*lines, "nodes: 2", network]) + "\n")


def forecast(cluster, sets):
    words = ["build/trireme", "plan", "configs/quickstart.yaml", "--cluster", str(cluster), "--json", *settings(sets)]
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)["step_seconds"]


def main(arguments):
    megabits, steps = (int(arguments[i]) if len(arguments) > i else default for i, default in enumerate((20, 12)))
    if steps < 3:
        raise SystemExit("slow_link: at least 3 steps; the first two are not counted")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        cluster = pathlib.Path(scratch) / "cluster.yaml"
        measure_core(cluster, megabits)
        with TwoHosts(scratch, megabits) as hosts:
            plain = None
            for method, of in METHODS.items():
                # The outer step after the last step of a run has all fragments, so it comes one step after the second round.
                rounds = of.get("training.local.steps")
                sets = {**COMMON, "plan.cluster": cluster, **of, "training.steps": 2 * rounds + 1 if rounds else steps}
                measured, expected = hosts.train(f"{scratch}/{method}", sets), forecast(cluster, sets)
                plain = plain or measured
                good = good and (method == "library" or abs(expected / measured - 1) <= 0.2)
                print(f"{method:9} {measured:7.3f} s a step, {plain / measured:5.2f} x the tokens/s of plain training; "
                      f"forecast {expected:7.3f} s ({100 * (expected / measured - 1):+.0f} %)", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
