#!/usr/bin/env bash
# Measures the overhead of parallelism on this machine's cores: training steps of one model on one rank with one thread per core, and on several ranks with
# the same total number of threads.
#   scripts/bench/parallel.sh [--trireme PROGRAM] [--rounds N] [--steps N] [--cores N] [--precisions "fp32 bf16"] [--model CONFIG] [--layouts "tensor data ranks"] [--phases]
# Every round runs all layouts; the figures are medians over rounds. Each comparison uses the same batch:
#   tensor   tensor N                       against one rank with N threads
#   data     data N, ZeRO-3, 8 micro-batches against one rank with N threads
#   ranks    8 ranks (tensor 2, pipeline 2, data 2) on N cores against 2 (tensor 2)
# CONFIG, if given, must define the model; the default is GPT-2 124M with micro-batches of 4 x 256 tokens. --phases prints the time by phase of the last
# round.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

trireme=$here/../../build/trireme
rounds=3
steps=4
cores=2
precisions="fp32 bf16"
layouts="tensor data ranks"
model=
phases=0
while [ $# -gt 0 ]; do
  case $1 in
    --trireme) trireme=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --cores) cores=$2; shift 2 ;;
    --precisions) precisions=$2; shift 2 ;;
    --layouts) layouts=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --phases) phases=1; shift ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "parallel: unknown option $1; see --help" >&2; exit 64 ;;
  esac
done
trireme=$(realpath "$trireme")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$model" ]; then
  model=$work/gpt2.yaml
  cat > "$model" <<'YAML'
model: {architecture: gpt2, layers: 12, hidden_size: 768, heads: 12, vocab_size: 50257, max_positions: 1024}
training: {steps: 1, sequence_length: 256, micro_batch_size: 4, global_batch_size: 4}
data: {train: [none]}
YAML
fi

# define NAME THREADS_PER_RANK KEY=VALUE...
declare -A threads sets
define() { threads[$1]=$2; sets[$1]=${*:3}; }
micro=$(sed -n 's/.*micro_batch_size: *\([0-9]*\).*/\1/p' "$model" | head -1)
eight=$((8 * ${micro:-1}))
one=$((eight / 8))
define serial "$cores" training.global_batch_size=$one
define tensor 1 training.global_batch_size=$one parallel.tensor="$cores" parallel.sequence_parallel=true
define serial8 "$cores" training.global_batch_size=$((eight * cores))
define data 1 training.global_batch_size=$((eight * cores)) parallel.data="$cores" parallel.zero_stage=3
define ranks2 1 training.global_batch_size=$((eight * 2)) parallel.tensor=2 parallel.sequence_parallel=true
define ranks8 1 training.global_batch_size=$((eight * 2)) parallel.tensor=2 parallel.pipeline=2 parallel.data=2 parallel.sequence_parallel=true

pairs=()
for layout in $layouts; do
  case $layout in
    tensor) pairs+=("tensor serial") ;;
    data) pairs+=("data serial8") ;;
    ranks) pairs+=("ranks8 ranks2") ;;
    *) echo "parallel: unknown layout $layout; see --help" >&2; exit 64 ;;
  esac
done
cases=$(printf '%s\n' "${pairs[@]}" | tr ' ' '\n' | sort -u)

run() {  # case precision; appends the tokens per second of one run
  local arguments=()
  for key in ${sets[$1]}; do arguments+=(--set "$key"); done
  OMP_NUM_THREADS=${threads[$1]} taskset -c "0-$((cores - 1))" "$trireme" bench step "$model" --precision "$2" --steps "$steps" --warmup 1 --seconds 0.02 --json "${arguments[@]}" \
    > "$work/$1-$2.json"
  grep -o '"tokens_per_second":{"median":[-+.0-9eE]*' "$work/$1-$2.json" | grep -o '[-+.0-9eE]*$' >> "$work/$1-$2.rates"
}
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

for ((round = 1; round <= rounds; ++round)); do
  for precision in $precisions; do
    for case in $cases; do run "$case" "$precision"; done
  done
done

printf '%-10s %-8s %14s   %-8s %14s   %s\n' precision layout tokens/s against tokens/s ratio
for precision in $precisions; do
  for pair in "${pairs[@]}"; do
    read -r layout base <<< "$pair"
    ours=$(median "$work/$layout-$precision.rates")
    theirs=$(median "$work/$base-$precision.rates")
    printf '%-10s %-8s %14.1f   %-8s %14.1f   %.3f\n' "$precision" "$layout" "$ours" "$base" "$theirs" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { print a / b }')"
  done
done
[ "$phases" -eq 1 ] || exit 0
for precision in $precisions; do
  for case in $cases; do
    printf '\n%s, %s: share of a step\n' "$case" "$precision"
    grep -o '{"phase":[^}]*}' "$work/$case-$precision.json" | sed -E 's/.*"phase":"([^"]*)","seconds":([^,]*),"share":([^}]*)}/\3 \2 \1/' |
      awk '{ name = $3; for (i = 4; i <= NF; ++i) name = name " " $i; printf "  %-28s %10.4f s  %5.1f %%\n", name, $2, 100 * $1 }'
  done
done
