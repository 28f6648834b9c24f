#!/usr/bin/env python3
"""Summarises the rounds of against_pytorch.sh: one JSON object for a folder of rounds, or a Markdown table of such objects.

  summary.py --variant VARIANT DIR
  summary.py --table SUMMARY.json...

Figures are medians over rounds of each program's median step, with the lowest and highest. Memory is `resident_bytes.beyond` of each program, without
parameters, gradients and optimizer state: for Trireme all resident memory, including library buffers; for PyTorch the memory of its allocator."""
import argparse
import glob
import json
import statistics


def load(path):
    with open(path) as file:
        return json.load(file)


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def summary(directory, variant):
    ours = [load(path) for path in sorted(glob.glob(f"{directory}/round-*-trireme.json"))]
    theirs = [load(path) for path in sorted(glob.glob(f"{directory}/round-*-pytorch-{variant}.json"))]
    rates = [[run["tokens_per_second"]["median"] for run in runs] for runs in (ours, theirs)]
    memory = [median((run.get("resident_bytes") or {}).get("beyond") for run in runs) for runs in (ours, theirs)]
    first, training = ours[0], ours[0]["training"]
    return {
        "precision": first["precision"],
        "shape": f"B{training['micro_batch_size']} T{training['sequence_length']}",
        "threads": first["environment"]["threads_per_rank"],
        "rounds": len(ours),
        "trireme_tokens_per_second": statistics.median(rates[0]),
        "trireme_low_high": [min(rates[0]), max(rates[0])],
        "share_of_gemm_ceiling": statistics.median(run["share_of_gemm_ceiling"] for run in ours),
        "pytorch_tokens_per_second": statistics.median(rates[1]),
        "pytorch_low_high": [min(rates[1]), max(rates[1])],
        "ratio": statistics.median(rates[0]) / statistics.median(rates[1]),
        "pytorch": theirs[0]["pytorch"],
        "variant": theirs[0]["variant"],
        "trireme_memory_beyond": memory[0],
        "pytorch_memory_beyond": memory[1],
        "memory_ratio": memory[0] / memory[1] if all(memory) else None,
    }


def table(rows):
    rate = lambda row, who: "{:.0f} ({:.0f} to {:.0f})".format(row[who + "_tokens_per_second"], *row[who + "_low_high"])
    megabytes = lambda value: "unknown" if value is None else f"{value / 1e6:.0f}"
    first = rows[0]
    print(f"PyTorch {first['pytorch']}, {first['threads']} threads each, {first['rounds']} alternating rounds; tokens/s: median (lowest to highest).")
    print("Ceiling: the matrix products of the model alone, in the same run. Memory: MB beyond parameters, gradients and optimizer state; for Trireme all")
    print("resident memory, including library buffers; for PyTorch the memory of its allocator.\n")
    print("| precision | shape | Trireme | of ceiling | PyTorch | PyTorch variant | ratio | Trireme memory | PyTorch memory | ratio |")
    print("|---|---|---:|---:|---:|---|---:|---:|---:|---:|")
    for row in rows:
        share, ratio = row["share_of_gemm_ceiling"], row["memory_ratio"]
        cells = [row["precision"], row["shape"], rate(row, "trireme"), f"{share:.0%}", rate(row, "pytorch"), row["variant"], f"{row['ratio']:.2f}"]
        cells += [megabytes(row["trireme_memory_beyond"]), megabytes(row["pytorch_memory_beyond"]), "" if ratio is None else f"{ratio:.2f}"]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", help="PyTorch variant, as in the file names of the rounds")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("paths", nargs="+")
    arguments = parser.parse_args()
    if arguments.table:
        table([load(path) for path in arguments.paths])
    else:
        print(json.dumps(summary(arguments.paths[0], arguments.variant)))


if __name__ == "__main__":
    main()
