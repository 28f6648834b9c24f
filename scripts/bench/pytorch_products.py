#!/usr/bin/env python3
"""Measures the matrix products of `trireme bench kernels` with torch.matmul: plain cuBLAS calls (oneDNN or MKL on a CPU), same shapes, random data.

  trireme bench kernels --only gemm --json > kernels.json
  pytorch_products.py --like kernels.json [--seconds S]

Times batches of calls after a warm-up and takes medians. Prints one JSON object with the rows of trireme and the ratio of each figure, trireme over PyTorch.
In bf16, trireme accumulates weight gradients in fp32, PyTorch writes them in bf16."""
import argparse
import json
import math
import statistics
import time

import torch

KEYS = ("forward_tflops", "backward_input_tflops", "backward_weight_tflops")


def median_seconds(call, synchronize, seconds):
    def run(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return (time.perf_counter() - begin) / calls

    run(1)
    once = run(1)
    once = run(max(1, math.ceil(0.02 / once)))
    calls = max(1, math.ceil(0.02 / once))
    batches = min(200, max(3, int(seconds / (once * calls))))
    return statistics.median(run(calls) for _ in range(batches))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--like", required=True, help="output of `trireme bench kernels --json`")
    parser.add_argument("--seconds", type=float, default=0.4, help="measuring time per figure")
    arguments = parser.parse_args()
    with open(arguments.like) as file:
        like = json.load(file)
    device = "cuda" if like["environment"]["gpu"] else "cpu"
    if device == "cpu":
        torch.set_num_threads(like["environment"]["threads_per_rank"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[like["precision"]]
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows = []
    for row in like["gemm"]:
        m, d, f = row["rows"], row["inputs"], row["outputs"]
        x, w, dy = (torch.randn(shape, device=device, dtype=dtype) for shape in ((m, d), (f, d), (m, f)))
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
        calls = (lambda: torch.matmul(x, w.t(), out=y), lambda: torch.matmul(dy, w, out=dx), lambda: torch.matmul(dy.t(), x, out=dw))
        result = {"product": row["product"], "rows": m, "inputs": d, "outputs": f}
        for key, call in zip(KEYS, calls):
            result[key] = 2 * m * d * f / median_seconds(call, synchronize, arguments.seconds) / 1e12
            result[key.replace("tflops", "ratio")] = row[key] / result[key]
        rows.append(result)
    ratios = [row[key.replace("tflops", "ratio")] for row in rows for key in KEYS]
    print(json.dumps({"bench": "pytorch products", "pytorch": torch.__version__, "worst_ratio": min(ratios), "gemm": rows}))


if __name__ == "__main__":
    main()
