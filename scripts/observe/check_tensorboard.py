#!/usr/bin/env python3
"""Compares the TensorBoard event files of a run with its metrics.jsonl, through TensorBoard's own reader. Needs `pip install tensorboard`.

  scripts/observe/check_tensorboard.py RUN [DIRECTORY]

RUN is a run directory; DIRECTORY holds the event files, RUN/tensorboard by default. Every number of every step and evaluation must be there as a 32-bit
number, with those of the events ranks and exposed, and nothing else. Histograms of weights must have one value for each parameter of the start event,
those of gradients the same sums, and bins that rise and adjoin; samples of text must be those of the events. Exits 1 and says what differs otherwise.
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


def check_histograms(board, tags, parameters, differences):
    """Histograms by kind and step; returns how many there are."""
    sums, count = {}, 0
    for tag in tags:
        if board.SummaryMetadata(tag).plugin_data.plugin_name != "histograms":
            differences.append(f"{tag}: not a histogram")
        for event in board.Tensors(tag):
            bins = tensor_util.make_ndarray(event.tensor_proto)
            count += 1
            if bins.dtype != numpy.float64 or bins.shape[1:] != (3,):
                differences.append(f"{tag}, step {event.step}: {bins.dtype} {bins.shape}")
            elif not ((bins[:, 0] < bins[:, 1]).all() and (bins[1:, 0] == bins[:-1, 1]).all() and (bins[:, 2] >= 0).all()):
                differences.append(f"{tag}, step {event.step}: bins do not rise or adjoin")
            else:
                key = (tag.split("/")[0], event.step)
                sums[key] = sums.get(key, 0) + int(bins[:, 2].sum())
    for (kind, step), total in sums.items():
        if total != parameters:
            differences.append(f"{kind}, step {step}: {total} values, not {parameters}")
    return count


def check_samples(board, run, tags, differences):
    """The texts of the events sample; returns their tags."""
    wanted, numbers = {}, {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "sample":
            number = numbers.setdefault(event["prompt"], len(numbers) + 1)
            lines = (event["prompt"] + event["text"]).split("\n")
            lines = lines[:-1] if lines[-1] == "" else lines
            wanted.setdefault(f"sample/{number}", []).append((event["step"], "".join(f"    {one}\n" for one in lines)))
    for tag, texts in wanted.items():
        read = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item().decode()) for event in board.Tensors(tag)] if tag in tags else []
        if read != texts:
            differences.append(f"{tag}: {len(texts)} texts in metrics.jsonl, {len(read)} in the event files, or other ones")
    return set(wanted)


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
    histograms = sorted(tag for tag in tags if tag.startswith(("weights/", "gradients/")))
    texts = check_samples(board, run, tags, differences)
    for tag in sorted(tags - wanted.keys() - {"configuration", "_hparams_/session_start_info"} - set(histograms) - texts):
        differences.append(f"{tag}: not in metrics.jsonl")
    points = 0
    for tag, values in wanted.items():
        read = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in board.Tensors(tag)] if tag in tags else []
        read = [(step, value) for step, value in read if not math.isnan(value)]  # null in metrics.jsonl
        if read != [(step, float(numpy.float32(value))) for step, value in sorted(values.items())]:
            differences.append(f"{tag}: {len(values)} values in metrics.jsonl, {len(read)} in the event files, or of other size")
        points += len(values)
    start = next(json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"event":"start"' in line)
    histogram_count = check_histograms(board, histograms, start["parameters"], differences)
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
    print(f"{len(wanted)} tags, {points} values, {histogram_count} histograms, {len(texts)} tags of samples, {parameters} hyper-parameters: {'equal' if not differences else 'DIFFERENT'}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
