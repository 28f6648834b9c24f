#!/usr/bin/env python3
"""Final validation losses of the quickstart's model trained with each compression of gradients, beside those of plain training.

  scripts/bench/compression.py [--warmup N] [--rank R] [STEPS [SEEDS [METHOD...]]]

By default 700 steps, three seeds and all methods: about 25 minutes on two idle cores. N: first steps without compression, 100 by default,
a quarter of all for one_bit_adam, which has beta2 0.99. R: of power_sgd.

Trains on two data ranks with ZeRO-2, with the data that ./scripts/quickstart.sh prepares, in a temporary directory. Prints for each method the mean
ratio of its validation loss to that of plain training with the same seed, and the smallest and largest, with and without error feedback; and the limit of
each method. Exit code 1 if a method with error feedback is above its limit, or is not better than without.
"""
import argparse
import statistics
import sys
import tempfile

from quickstart_run import validation_loss

METHODS = {"int8": 0.01, "int4": 0.02, "sign": 0.03, "top_k": 0.03, "random_k": None, "power_sgd": 0.02, "one_bit_adam": 0.03,
           "parameters": 0.01}  # training.compression.parameters int8, which has no error feedback


def loss_of(directory, seed, steps, method, feedback, options):
    sets = {
        "run.directory": directory, "run.seed": seed, "parallel.data": 2, "parallel.zero_stage": 2, "training.steps": steps,
    }
    if method == "parameters":
        sets["training.compression.parameters"] = "int8"
    elif method != "none":
        sets["training.compression.method"] = method
        sets["training.compression.error_feedback"] = str(feedback).lower()
        sets["training.compression.warmup_steps"] = options.warmup
    if method == "power_sgd":
        sets["training.compression.rank"] = options.rank
    if method == "one_bit_adam":  # what stays must be a mean of many steps
        sets |= {"training.compression.warmup_steps": steps // 4, "training.optimizer.beta2": 0.99}
    return validation_loss(sets)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("steps", type=int, nargs="?", default=700)
    parser.add_argument("seeds", type=int, nargs="?", default=3)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    options = parser.parse_args(arguments)
    if unknown := [method for method in options.methods if method not in METHODS]:
        parser.error(f"unknown methods: {' '.join(unknown)}; allowed {' '.join(METHODS)}")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        number = 0

        def train(*of):
            nonlocal number
            number += 1
            return loss_of(f"{scratch}/{number}", of[0], options.steps, *of[1:], options)

        plain = [train(seed, "none", True) for seed in range(1, options.seeds + 1)]
        print("plain", " ".join(f"{loss:.4f}" for loss in plain), flush=True)
        for method in options.methods or METHODS:
            limit = METHODS[method]
            means = {}
            for feedback in (True,) if method == "parameters" else (True, False):
                ratios = [train(seed, method, feedback) / loss for seed, loss in enumerate(plain, 1)]
                means[feedback] = statistics.fmean(ratios)
                name = "" if method == "parameters" else "with error feedback" if feedback else "without error feedback"
                print(f"{method:13}{name:23}{100 * (means[feedback] - 1):+7.2f} %  ({100 * (min(ratios) - 1):+.2f} to "
                      f"{100 * (max(ratios) - 1):+.2f}), limit {'none' if limit is None else f'{100 * limit:.0f} %'}", flush=True)
            good = good and (limit is None or means[True] - 1 <= limit) and means[True] < means.get(False, float("inf"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
