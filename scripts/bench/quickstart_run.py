"""Trains the quickstart's model with some keys overridden, for the measurements beside it. Run them with the data that ./scripts/quickstart.sh prepares."""
import json
import pathlib
import subprocess


def settings(sets):
    """Arguments of `trireme` that override these keys."""
    return [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]


def lines_of(directory):
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()]


def validation_loss(sets):
    """Trains on one rank of each axis but those in `sets`, in sets["run.directory"]; returns the last validation loss.

    The learning rate is the best one of plain training for 700 steps among 0.001, 0.0015, 0.002 and 0.004, at which the quickstart is faster but noisier.
    """
    common = {
        "parallel.tensor": 1, "parallel.pipeline": 1, "parallel.sequence_parallel": "false", "training.optimizer.learning_rate": 0.002,
        "training.schedule.warmup_steps": 20, "training.evaluate.every": 0, "checkpoint.every": 0,
    }
    subprocess.run(["build/trireme", "train", "configs/quickstart.yaml", *settings(common | sets)], check=True, capture_output=True)
    return [line["validation_loss"] for line in lines_of(sets["run.directory"]) if "validation_loss" in line][-1]
