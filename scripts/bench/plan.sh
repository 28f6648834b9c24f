#!/usr/bin/env bash
# Compares forecasts of `trireme plan` with measurements on this machine: ten configurations on one to eight ranks, with figures from
# `trireme bench machine`.
#   scripts/bench/plan.sh [--trireme PROGRAM] [--rounds N] [--seconds N] [--cluster FILE] [--json FILE] [--check]
# Every round measures the machine's figures, then trains each configuration for about --seconds, at least three steps. Forecast and measurement are means
# over the rounds; each round uses its own figures and the mean of its steps, so that intermittent load on the machine affects both. Memory is the highest
# arena peak of any rank. --cluster: use these figures instead of measuring. --check: exit code 1 if a step is more than 15 % or memory more than 2 % off.
# The load average, including the ranks, is printed above the table: while other programs run, the ratios mean little.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

trireme=$here/../../build/trireme
rounds=3
seconds=10
cluster=
json=
check=0
while [ $# -gt 0 ]; do
  case $1 in
    --trireme | --rounds | --seconds | --cluster | --json) [ $# -ge 2 ] || { echo "plan: $1 needs a value; see --help" >&2; exit 64; } ;;
  esac
  case $1 in
    --check) check=1; shift ;;
    --trireme) trireme=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --cluster) cluster=$2; shift 2 ;;
    --json) json=$2; shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "plan: unknown option $1; see --help" >&2; exit 64 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config() {  # name, model, parallel, training
  printf '%s\n' "run: {name: $1, device: cpu}" "model: {$2}" "parallel: {$3}" "training: {steps: 1, $4}" "data: {train: [none]}" > "$work/$1.yaml"
}
tiny="architecture: llama, layers: 4, hidden_size: 128, heads: 8, kv_heads: 4, ffn_size: 352, vocab_size: 256"
small="architecture: llama, layers: 8, hidden_size: 256, heads: 8, kv_heads: 4, ffn_size: 688, vocab_size: 4096"
middle="architecture: llama, layers: 8, hidden_size: 512, heads: 8, kv_heads: 4, ffn_size: 1408, vocab_size: 16384"
large="architecture: llama, layers: 12, hidden_size: 768, heads: 12, kv_heads: 4, ffn_size: 2048, vocab_size: 32000"
config 01-tiny-3d-zero3 "$tiny" "tensor: 2, pipeline: 2, data: 2, zero_stage: 3, sequence_parallel: true" \
  "sequence_length: 128, micro_batch_size: 4, global_batch_size: 32"
config 02-small-fp32 "$small" "tensor: 1" \
  "sequence_length: 256, micro_batch_size: 4, global_batch_size: 8"
config 03-small-bf16 "$small" "tensor: 1" \
  "sequence_length: 256, micro_batch_size: 4, global_batch_size: 8, precision: bf16"
config 04-gpt2-data2-zero1 "architecture: gpt2, layers: 6, hidden_size: 384, heads: 6, vocab_size: 16384" "data: 2, zero_stage: 1" \
  "sequence_length: 256, micro_batch_size: 2, global_batch_size: 16"
config 05-gpt2-124m-selective "architecture: gpt2, layers: 12, hidden_size: 768, heads: 12, vocab_size: 50257" "tensor: 1" \
  "sequence_length: 256, micro_batch_size: 4, global_batch_size: 8, precision: bf16, recompute: selective"
config 06-llama-100m-pipeline2 "$large" "pipeline: 2" \
  "sequence_length: 512, micro_batch_size: 1, global_batch_size: 4, precision: bf16"
config 07-llama-100m-tensor2 "$large" "tensor: 2, sequence_parallel: true" \
  "sequence_length: 256, micro_batch_size: 2, global_batch_size: 4"
config 08-middle-data4-zero3 "$middle" "data: 4, zero_stage: 3" \
  "sequence_length: 256, micro_batch_size: 2, global_batch_size: 16, precision: bf16"
config 09-middle-full-recompute "$middle" "tensor: 2, data: 2, zero_stage: 2" \
  "sequence_length: 512, micro_batch_size: 1, global_batch_size: 8, recompute: full"
config 10-gpt2-interleaved "architecture: gpt2, layers: 8, hidden_size: 256, heads: 8, vocab_size: 8192" \
  "pipeline: 4, data: 2, schedule: interleaved_1f1b" \
  "sequence_length: 256, micro_batch_size: 1, global_batch_size: 16, precision: bf16"

first() { grep -o "\"$1\":[^,}]*" | head -1 | cut -d: -f2; }  # first number with key $1
for ((round = 1; round <= rounds; ++round)); do
  figures=$cluster
  if [ -z "$cluster" ]; then
    figures=$work/cluster-$round.yaml
    "$trireme" bench machine --output "$figures" 2> "$work/residuals"
    [ "$round" -gt 1 ] || cat "$work/residuals" >&2
  fi
  for file in "$work"/[0-9]*.yaml; do
    name=$(basename "$file" .yaml)
    "$trireme" plan "$file" --cluster "$figures" --json > "$work/$name.plan"
    forecast=$(first step_seconds < "$work/$name.plan")
    echo "$forecast" >> "$work/$name.forecast"
    steps=$(awk -v s="$seconds" -v f="$forecast" 'BEGIN { n = int(s / f); print (n > 3 ? n : 3) }')
    "$trireme" bench step "$file" --steps "$steps" --warmup 2 --seconds 0.03 --json > "$work/step" 2>> "$work/log" ||
      { cat "$work/log" >&2; exit 1; }
    grep -o '"step_seconds":{[^}]*' "$work/step" | first mean >> "$work/$name.measured"
    first peak < "$work/step" > "$work/$name.bytes"
  done
done
mean() { awk '{ sum += $1 } END { print sum / NR }'; }
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores, rounds $rounds, $seconds seconds each"
printf '%-26s %10s %10s %6s %14s %14s %7s\n' configuration forecast measured ratio 'bytes planned' measured ratio
for file in "$work"/[0-9]*.yaml; do
  name=$(basename "$file" .yaml)
  bytes=$(grep -o '"memory_bytes":\[[^]]*' "$work/$name.plan" | grep -o '[0-9.e+]*' | sort -g | tail -1)
  awk -v n="$name" -v f="$(mean < "$work/$name.forecast")" -v m="$(mean < "$work/$name.measured")" -v b="$bytes" -v c="$(cat "$work/$name.bytes")" 'BEGIN {
    printf "%-26s %10.4f %10.4f %6.3f %14.0f %14.0f %7.4f\n", n, f, m, f / m, b, c, b / c }' | tee -a "$work/table"
done
awk '{ t = $4 > 1 ? $4 - 1 : 1 - $4; m = $7 > 1 ? $7 - 1 : 1 - $7; if (t > wt) wt = t; if (m > wm) wm = m; st += t; if (t <= 0.15) ++in15 }
     END { printf "time: mean error %.1f %%, worst %.1f %%, %d of %d within 15 %%; ", 100 * st / NR, 100 * wt, in15, NR
           printf "memory: worst %.2f %%\n", 100 * wm
           exit !(wt <= 0.15 && wm <= 0.02) }' "$work/table" || off=1
if [ -n "$json" ]; then
  awk 'BEGIN { print "[" }
       { printf "%s{\"configuration\": \"%s\", \"forecast_seconds\": %s, \"measured_seconds\": %s, ", (NR > 1 ? "," : ""), $1, $2, $3
         printf "\"forecast_bytes\": %s, \"measured_bytes\": %s}\n", $5, $6 }
       END { print "]" }' "$work/table" > "$json"
fi
if [ "$check" = 1 ] && [ "${off:-0}" = 1 ]; then
  echo "plan: a forecast is more than 15 % (time) or 2 % (memory) off" >&2
  exit 1
fi
