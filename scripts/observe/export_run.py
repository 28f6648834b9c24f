#!/usr/bin/env python3
"""Gives the figures of finished or stopped runs to MLflow or Weights & Biases, through their own Python packages.

  scripts/observe/export_run.py mlflow RUN... [--to URI]      pip install mlflow; URI as in MLFLOW_TRACKING_URI
  scripts/observe/export_run.py wandb RUN... [--to DIRECTORY] pip install wandb; writes offline runs, which `wandb sync DIRECTORY/wandb/offline-run-*` sends

RUN is a run directory with metrics.jsonl and config.yaml. Every number of every step and evaluation becomes a metric with the name of its key, and
every key of the configuration a parameter. The experiment or project is called trireme; --project NAME changes that. Each call makes new runs.
"""
import argparse
import datetime
import json
import pathlib
import sys


def flat(fields, separator, prefix=""):
    """The leaves of a nested mapping, by path."""
    leaves = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            leaves.update(flat(value, separator, f"{prefix}{key}{separator}"))
        else:
            leaves[prefix + key] = value
    return leaves


def scalar(text):
    """A value of config.yaml: JSON where it is one, else text. Lists stay text, as neither program has lists."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value


def configuration(text):
    """The keys of a config.yaml that the program has written: sections and `key: value`, two spaces a level. No YAML package is needed for that."""
    keys, path = {}, []
    for line in text.splitlines():
        name, _, value = line.strip().partition(":")
        path = path[: (len(line) - len(line.lstrip())) // 2] + [name]
        if value:
            keys[".".join(path)] = scalar(value.strip())
    return keys


def measurements(run):
    """(step, seconds since 1970, {metric: number}) of each step and evaluation."""
    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        if "event" in fields or "step" not in fields:
            continue
        step, time = fields.pop("step"), datetime.datetime.fromisoformat(fields.pop("time").replace("Z", "+00:00")).timestamp()
        numbers = {key: value for key, value in flat(fields, "/").items() if isinstance(value, (int, float))}
        yield step, time, numbers


def to_mlflow(run, parameters, options):
    import mlflow
    from mlflow.entities import Metric, Param

    client = mlflow.MlflowClient(tracking_uri=options.to)
    experiment = client.get_experiment_by_name(options.project)
    identity = experiment.experiment_id if experiment else client.create_experiment(options.project)
    rows = list(measurements(run))
    made = client.create_run(identity, start_time=int(1000 * rows[0][1]), run_name=str(parameters["run.name"]), tags={"trireme.directory": str(run.resolve())})
    metrics = [Metric(key, value, int(1000 * time), step) for step, time, numbers in rows for key, value in numbers.items()]
    most = 100  # the largest numbers of parameters and metrics that every store takes in one call
    listed = [Param(key, str(value)) for key, value in parameters.items()]
    for begin in range(0, len(listed), most):
        client.log_batch(made.info.run_id, params=listed[begin : begin + most])
    for begin in range(0, len(metrics), 10 * most):
        client.log_batch(made.info.run_id, metrics=metrics[begin : begin + 10 * most])
    client.set_terminated(made.info.run_id, end_time=int(1000 * rows[-1][1]))
    print(f"{run}: {len(rows)} measurements, {len(metrics)} values, MLflow run {made.info.run_id}")


def to_wandb(run, parameters, options):
    import wandb

    made = wandb.init(project=options.project, name=str(parameters["run.name"]), dir=options.to, mode="offline", config=parameters, reinit="finish_previous",
                      settings=wandb.Settings(console="off", x_disable_stats=True, silent=True))
    made.define_metric("*", step_metric="step")
    rows = 0
    merged = {}
    for step, time, numbers in measurements(run):  # a step and its evaluation are one row
        if merged and merged["step"] != step:
            made.log(merged)
            merged = {}
        merged.update(numbers, step=step, time=time)
        rows += 1
    if merged:
        made.log(merged)
    directory = pathlib.Path(made.dir).parent
    made.finish()
    print(f"{run}: {rows} measurements, offline run {directory}")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=["mlflow", "wandb"])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    parser.add_argument("--to")
    parser.add_argument("--project", default="trireme")
    options = parser.parse_args(arguments)
    for run in options.runs:
        missing = [name for name in ("metrics.jsonl", "config.yaml") if not (run / name).is_file()]
        if missing or not any(True for _ in measurements(run)):
            print(f"{run}: not a run directory with steps: {', '.join(missing) or 'metrics.jsonl has none'}", file=sys.stderr)
            return 66
    try:
        for run in options.runs:
            {"mlflow": to_mlflow, "wandb": to_wandb}[options.program](run, configuration((run / "config.yaml").read_text()), options)
    except ImportError as error:
        print(f"{error}: pip install {options.program}", file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
