#!/usr/bin/env python3
"""Writes the directory of an invented run, to try `trireme report` at sizes that no test can train.

  scripts/synthetic-run.py DIR [--steps N] [--ranks N] [--seed S] [--rate R]

--ranks N   each step records the busy times of N ranks (the event ranks); some of them are slow for a while, and one host is slow to the end
--rate R    the learning rate, which shifts the curves
The loss follows a power law with noise and two spikes; three jobs with pauses; a checkpoint every hundredth of the run. Equal arguments write equal files.
"""
import argparse
import datetime
import json
import math
import pathlib
import random


def configuration(arguments):
    data = max(1, arguments.ranks // 8)
    return f"""run:
  name: {arguments.directory.name}
  directory: {arguments.directory}
  seed: {arguments.seed}
  device: cuda
model:
  architecture: llama
  layers: 32
  hidden_size: 4096
  heads: 32
  kv_heads: 8
  vocab_size: 128256
parallel:
  tensor: 8
  pipeline: 1
  data: {data}
  zero_stage: 3
training:
  steps: {arguments.steps}
  sequence_length: 4096
  micro_batch_size: 1
  global_batch_size: {data * 32}
  precision: bf16
  optimizer:
    learning_rate: {arguments.rate}
  schedule:
    warmup_steps: {arguments.steps // 50}
data:
  train: [data/web]
  validation: [data/held-out]
checkpoint:
  every: {max(1, arguments.steps // 100)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=3e-4)
    arguments = parser.parse_args()
    noise = random.Random(arguments.seed)
    steps, ranks = arguments.steps, arguments.ranks
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "config.yaml").write_text(configuration(arguments))
    (arguments.directory / "environment.json").write_text(json.dumps({
        "version": "0.1.0 (synthetic)", "host": {"name": "synthetic", "cpu": "none", "cores": 0}, "world_size": ranks or 8}, indent=2) + "\n")
    world = ranks or 8
    tokens_per_step = max(1, ranks // 8) * 32 * 4096
    now = datetime.datetime(2026, 11, 23, 9, 0, tzinfo=datetime.timezone.utc)
    forecast = {"step_seconds": 1.9, "step_low": 1.75, "step_high": 2.1, "mfu": 0.46, "bubble": 0.0, "figures": "synthetic"}
    base = [1 + 0.01 * noise.gauss(0, 1) for _ in range(ranks)]
    slow = [(noise.randrange(ranks), noise.random() * 0.8, 0.05 + noise.random() * 0.2, 1.1 + noise.random() * 0.4) for _ in range(6)] if ranks else []
    with open(arguments.directory / "metrics.jsonl", "w") as file:
        def line(**fields):
            fields["time"] = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"
            file.write(json.dumps(fields, separators=(",", ":")) + "\n")

        start = {"steps": steps, "parameters": 8030261248, "world_size": world, "layout": {"data": max(1, ranks // 8), "tensor": 8},
                 "version": "0.1.0 (synthetic)", "forecast": forecast}
        line(event="start", step=0, **start)
        for step in range(1, steps + 1):
            share = step / steps
            if step in (steps * 31 // 100, steps * 68 // 100):
                now += datetime.timedelta(seconds=0.02 * 2 * steps)
                line(event="start", step=step - 1, **start)
            rate = arguments.rate * min(1, step / max(1, steps // 50)) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))
            spike = sum(2.5 * math.exp(-(step - at) / (0.003 * steps)) for at in (steps * 23 // 100, steps * 55 // 100) if step >= at)
            loss = 1.75 + (arguments.rate - 3e-4) * 300 + 10.0 / (1 + step * 5e4 / steps / 60) ** 0.42 + spike + 0.05 * noise.gauss(0, 1)
            norm = (0.3 + 4 / (1 + 60 * share)) * math.exp(0.25 * noise.gauss(0, 1)) * (1 + 6 * spike)
            seconds = 2.0 + 0.05 * abs(noise.gauss(0, 1)) + (0.6 if noise.random() < 0.01 else 0)
            busy = None
            if ranks:
                times = [1.9 * b * (1 + 0.015 * noise.gauss(0, 1)) for b in base]
                for rank, begin, length, factor in slow:
                    if begin <= share <= begin + length:
                        times[rank] *= factor
                if share > 0.62:
                    for rank in range(ranks * 3 // 8 // 8 * 8, min(ranks, ranks * 3 // 8 // 8 * 8 + 8)):
                        times[rank] *= 1.18
                busy = [round(time, 4) for time in times]
                seconds = max(times) + 0.04
            now += datetime.timedelta(seconds=seconds)
            flops = 6 * 8.03e9 * tokens_per_step / seconds
            line(step=step, loss=loss, grad_norm=norm, learning_rate=rate, tokens=step * tokens_per_step, step_seconds=seconds,
                 tokens_per_second=tokens_per_step / seconds, model_tflops=flops / 1e12, mfu=flops / 989e12 / world)
            if busy:
                line(event="ranks", step=step, steps=1, busy_seconds=busy)
            if step % max(1, steps // 100) == 0:
                line(event="checkpoint", checkpoint=f"step-{step:08d}", bytes=112000000000, stall_seconds=0.8, write_seconds=40.0)
            if step % max(1, steps // 50) == 0:
                now += datetime.timedelta(seconds=8)
                line(step=step, validation_loss=loss - spike + 0.08 + 0.01 * noise.gauss(0, 1))
        memory = {"parameters": 2.1e9, "gradients": 2.0e9, "optimizer": 8.4e9, "activations": 31e9, "workspace": 1.2e9, "communication": 2.6e9, "data": 1e6}
        measured = {name: value * (1.06 if name == "workspace" else 1) for name, value in memory.items()}
        line(event="memory", step=steps, forecast=[memory | {"peak": 44.1e9}], measured=[measured | {"peak": 44.2e9}])


main()
