#!/usr/bin/env bash
# Training steps of Trireme and of PyTorch by turns, in one run on one machine: same model, shapes, precision, optimizer and threads; medians over rounds.
#   scripts/bench/against_pytorch.sh --output DIR [--trireme PROGRAM] [--rounds N] [--steps N] [--variants "autocast master"] CONFIG [--set key=value]...
# In the first round every variant of PyTorch (see pytorch_step.py; "eager" after a variant's name with a colon: plain:eager) has a turn, afterwards the
# fastest alone. Writes round-N-*.json and summary.json to DIR and prints the summary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

trireme=$here/../../build/trireme
output=
rounds=3
steps=6
variants=
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --trireme) trireme=$2; shift 2 ;;
    --output) output=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --variants) variants=$2; shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
if [ ${#arguments[@]} -eq 0 ] || [ -z "$output" ]; then
  echo "against_pytorch: needs --output DIR and a configuration; see --help" >&2
  exit 64
fi
mkdir -p "$output"
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$output/inductor}  # later rounds find what the first compiled

# The first number after "median" of the object named $1 in file $2.
median_of() { grep -o "\"$1\": *{\"median\": *[-+.0-9eE]*" "$2" | grep -o '[-+.0-9eE]*$'; }
of_pytorch() {  # variant[:eager] file
  local mode=()
  [[ $1 == *:eager ]] && mode=(--eager)
  python3 "$here/pytorch_step.py" --like "$output/round-1-trireme.json" --variant "${1%:eager}" "${mode[@]}" --steps "$steps" > "$2"
}

failed=0
for ((round = 1; round <= rounds; ++round)); do
  "$trireme" bench step "${arguments[@]}" --steps "$steps" --json > "$output/round-$round-trireme.json"
  if [ -z "$variants" ]; then
    variants=$(grep -q '"precision":"bf16"' "$output/round-1-trireme.json" && echo autocast master || echo plain)
  fi
  fastest="" best=0
  for variant in $variants; do
    file=$output/round-$round-pytorch-${variant/:/-}.json
    if ! of_pytorch "$variant" "$file"; then
      echo "against_pytorch: PyTorch, $variant: failed" >&2
      rm -f "$file"
      failed=1
      continue
    fi
    rate=$(median_of tokens_per_second "$file")
    if awk -v a="$rate" -v b="$best" 'BEGIN { exit !(a > b) }'; then fastest=$variant best=$rate; fi
  done
  [ -n "$fastest" ] || { echo "against_pytorch: PyTorch has run in no variant" >&2; exit 70; }
  variants=$fastest
done

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
ours=$(for ((round = 1; round <= rounds; ++round)); do median_of tokens_per_second "$output/round-$round-trireme.json"; done | median)
theirs=$(for ((round = 1; round <= rounds; ++round)); do median_of tokens_per_second "$output/round-$round-pytorch-${variants/:/-}.json"; done | median)
ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN { print a / b }')
version=$(grep -o '"pytorch": "[^"]*"' "$output/round-$rounds-pytorch-${variants/:/-}.json" | cut -d'"' -f4)
printf '{"trireme_tokens_per_second": %s, "pytorch_tokens_per_second": %s, "ratio": %s, "pytorch": "%s", "variant": "%s", "rounds": %s}\n' \
  "$ours" "$theirs" "$ratio" "$version" "$variants" "$rounds" | tee "$output/summary.json"
[ "$failed" -eq 0 ] || echo "against_pytorch: some variants of PyTorch failed; the figures are the fastest of the others" >&2
