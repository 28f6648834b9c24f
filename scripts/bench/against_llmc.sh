#!/usr/bin/env bash
# Compares training steps of Trireme and llm.c's CPU program (GPT-2 124M, fp32, 4 sequences of 64 tokens: the shape built into llm.c). Runs both
# alternately on one machine with the same number of threads, and reports medians over rounds.
#   scripts/bench/against_llmc.sh --llmc DIR [--trireme PROGRAM] [--rounds N] [--steps N]
# DIR is a checkout of llm.c (karpathy/llm.c on GitHub). It is compiled with the flags of its Makefile and 512-bit vectors, and reads random weights and
# tokens, because the step time does not depend on them. Prints one JSON object; the ratios are Trireme over llm.c, in fp32 and bf16 (llm.c: fp32 only).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

trireme=$here/../../build/trireme
llmc=
rounds=3
steps=5
while [ $# -gt 0 ]; do
  case $1 in
    --llmc) llmc=$2; shift 2 ;;
    --trireme) trireme=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "against_llmc: unknown option $1; see --help" >&2; exit 64 ;;
  esac
done
[ -f "$llmc/train_gpt2.c" ] || { echo "against_llmc: --llmc DIR: no train_gpt2.c in \"$llmc\"" >&2; exit 66; }
threads=${OMP_NUM_THREADS:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wide=$(grep -qm1 avx512f /proc/cpuinfo && echo -mprefer-vector-width=512 || true)
# shellcheck disable=SC2086
gcc -Ofast -march=native $wide -fopenmp -DOMP -w -I"$llmc" "$llmc/train_gpt2.c" -lm -o "$work/train_gpt2"
mkdir -p "$work/dev/data/tinyshakespeare"
python3 - "$work" <<'PYTHON'
import array, random, sys
work = sys.argv[1]
def header(*fields):
    return array.array("i", list(fields) + [0] * (256 - len(fields))).tobytes()
V, T, L, C = 50304, 1024, 12, 768
count = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
draw = random.Random(1)
block = array.array("f", [draw.gauss(0, 0.02) for _ in range(1 << 16)]).tobytes()
with open(work + "/gpt2_124M.bin", "wb") as file:
    file.write(header(20240326, 3, T, 50257, L, 12, C, V))
    file.write((block * (4 * count // len(block) + 1))[: 4 * count])
tokens = array.array("H", [draw.randrange(50257) for _ in range(100000)]).tobytes()
for part in ("train", "val"):
    with open(work + f"/dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin", "wb") as file:
        file.write(header(20240520, 1, 100000) + tokens)
PYTHON
cat > "$work/gpt2.yaml" <<'YAML'
model: {architecture: gpt2, layers: 12, hidden_size: 768, heads: 12, vocab_size: 50257, max_positions: 1024}
training: {steps: 1, sequence_length: 64, micro_batch_size: 4, global_batch_size: 4}
data: {train: [none]}
YAML

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
ours() {  # precision; prints tokens per second
  "$trireme" bench step "$work/gpt2.yaml" --precision "$1" --steps "$steps" --json | grep -o '"tokens_per_second":{"median":[0-9.]*' | grep -o '[0-9.]*$'
}
: > "$work/log"
theirs() {  # tokens per second of llm.c, without its first step; stops it after enough steps
  local program
  (cd "$work" && OMP_NUM_THREADS=$threads exec stdbuf -oL ./train_gpt2 > log 2> /dev/null) &
  program=$!
  until [ "$(grep -c '^step [1-9]' "$work/log")" -ge "$steps" ] || ! kill -0 "$program" 2> /dev/null; do sleep 1; done
  kill "$program" 2> /dev/null || true
  wait "$program" 2> /dev/null || true
  awk '/^step [1-9]/ { sub(/.*took /, ""); print 256 / ($1 / 1000) }' "$work/log" | median
}
for ((round = 1; round <= rounds; ++round)); do
  ours fp32 >> "$work/fp32"
  theirs >> "$work/llmc"
  ours bf16 >> "$work/bf16"
done
fp32=$(median < "$work/fp32") bf16=$(median < "$work/bf16") other=$(median < "$work/llmc")
awk -v a="$fp32" -v b="$bf16" -v c="$other" -v n="$rounds" -v t="$threads" 'BEGIN {
  printf "{\"threads\": %d, \"rounds\": %d, \"trireme_fp32\": %.1f, \"trireme_bf16\": %.1f, \"llmc_fp32\": %.1f, \"ratio_fp32\": %.2f, \"ratio_bf16\": %.2f}\n",
         t, n, a, b, c, a / c, b / c }'
