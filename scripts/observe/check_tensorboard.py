#!/usr/bin/env python3
"""Compares the TensorBoard event files of a run with its metrics.jsonl, through TensorBoard's own reader. Needs `pip install tensorboard`.

  scripts/observe/check_tensorboard.py RUN [DIRECTORY]

RUN is a run directory; DIRECTORY holds the event files, RUN/tensorboard by default. Every number of every step and evaluation must be there as a 32-bit
number, with those of the events ranks and exposed, and nothing else. Exits 1 and says what differs otherwise.
"""
import json
import math
import pathlib
import sys

import numpy
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util


def expected(run):
    """The scalars of metrics.jsonl by tag and step."""
    scalars = {}

    def add(prefix, fields, step):
        for key, value in fields.items():
            if isinstance(value, dict):
                add(f"{prefix}{key}/", value, step)
            elif isinstance(value, list):  # one value for each rank
                values = [one for one in value if one is not None]
                if values:
                    add(f"{prefix}{key}/", {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}, step)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                scalars.setdefault(prefix + key, {})[step] = value

    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        event, step = fields.pop("event", ""), fields.pop("step", None)
        if event in ("", "exposed", "ranks"):
            add(f"{event}/" if event else "", fields, step)
    return scalars


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 64
    run = pathlib.Path(arguments[0])
    directory = arguments[1] if len(arguments) == 2 else str(run / "tensorboard")
    board = EventAccumulator(directory, size_guidance={"tensors": 0})  # 0: keep every value
    board.Reload()
    differences = []
    wanted = expected(run)
    tags = set(board.Tags()["tensors"])
    for tag in sorted(tags - wanted.keys() - {"configuration", "_hparams_/session_start_info"}):
        differences.append(f"{tag}: not in metrics.jsonl")
    points = 0
    for tag, values in wanted.items():
        read = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in board.Tensors(tag)] if tag in tags else []
        read = [(step, value) for step, value in read if not math.isnan(value)]  # null in metrics.jsonl
        if read != [(step, float(numpy.float32(value))) for step, value in sorted(values.items())]:
            differences.append(f"{tag}: {len(values)} values in metrics.jsonl, {len(read)} in the event files, or of other size")
        points += len(values)
    text = tensor_util.make_ndarray(board.Tensors("configuration")[-1].tensor_proto).item().decode()
    lines = "".join(f"    {line}\n" for line in (run / "config.yaml").read_text().splitlines())
    if text != lines:
        differences.append("configuration: differs from config.yaml")
    hparams = plugin_data_pb2.HParamsPluginData.FromString(board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    parameters = len(hparams.session_start_info.hparams)
    if hparams.session_start_info.hparams["training.sequence_length"].number_value <= 0:
        differences.append("hyper-parameters: no training.sequence_length")
    for difference in differences:
        print(difference, file=sys.stderr)
    print(f"{len(wanted)} tags, {points} values, {parameters} hyper-parameters: {'equal' if not differences else 'DIFFERENT'}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
