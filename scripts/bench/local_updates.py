#!/usr/bin/env python3
"""Final validation losses of the quickstart's model trained by islands with local updates, beside those of plain data parallel training.

  scripts/bench/local_updates.py [STEPS [SEEDS [ISLANDS]]]      700 steps, three seeds and two islands by default; 15 minutes on two idle cores

Trains on a rank for each island, with the data that ./scripts/quickstart.sh prepares, in a temporary directory. Prints for each setting the mean ratio of
its validation loss to that of plain training with the same seed, tokens and global batch, and the smallest and largest. Exit code 1 if a mean is above the
limit of its setting, which is somewhat more than docs/parallelism.md gives for two and for four islands.
"""
import statistics
import sys
import tempfile

from quickstart_run import validation_loss

SETTINGS = {  # the limit, and training.local
    "local SGD, 8": (0.05, {"steps": 8, "outer_learning_rate": 1.0, "outer_momentum": 0.0}),
    "DiLoCo, 50": (0.18, {"steps": 50}),
    "DiLoCo, 100": (0.20, {"steps": 100}),
    "streaming, 50": (0.18, {"steps": 50, "fragments": 2, "delay": 2, "blend": 0.5}),
}


def loss_of(directory, seed, steps, setting, islands):
    sets = {
        "run.directory": directory, "run.seed": seed, "parallel.data": 1 if setting else 2, "parallel.zero_stage": 0, "training.steps": steps,
        "resilience.hang_seconds": 300,
    }
    if setting:
        sets |= {"parallel.islands": islands} | {f"training.local.{key}": value for key, value in setting.items()}
    return validation_loss(sets)


def main(arguments):
    steps, seeds, islands = (int(arguments[i]) if len(arguments) > i else default for i, default in enumerate((700, 3, 2)))
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        plain = [loss_of(f"{scratch}/plain-{seed}", seed, steps, None, islands) for seed in range(1, seeds + 1)]
        print("plain", " ".join(f"{loss:.4f}" for loss in plain), flush=True)
        for name, (limit, setting) in SETTINGS.items():
            ratios = [loss_of(f"{scratch}/{name}-{seed}", seed, steps, setting, islands) / loss for seed, loss in enumerate(plain, 1)]
            mean = statistics.fmean(ratios) - 1
            good = good and mean <= limit
            print(f"{name:14} {100 * mean:+7.2f} %  ({100 * (min(ratios) - 1):+.2f} to {100 * (max(ratios) - 1):+.2f}), limit {100 * limit:.0f} %", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
