#!/usr/bin/env bash
# Compares training steps of Trireme and PyTorch with the same model, shapes, precision, optimizer and threads. Runs both alternately on one machine and
# reports medians over rounds.
#   scripts/bench/against_pytorch.sh --output DIR [--trireme PROGRAM] [--rounds N] [--steps N] [--variants "VARIANT..."]
#       [--shapes "4x64 4x256"] [--precisions "fp32 bf16"] [--report DIR] CONFIG [--set key=value]...
# A shape is sequences x tokens. The first round runs every PyTorch variant (of pytorch_step.py, flags after colons: autocast:eager), the others only the
# fastest one. Writes round-N-*.json and summary.json to DIR, with --shapes in one folder per shape and precision. --report writes the table
# DIR/<config>_<hardware>_<date>.md. PyTorch is that of python3 in PATH; the head of pytorch_step.py describes its installation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command="scripts/bench/against_pytorch.sh$(printf ' %q' "$@")"

trireme=$here/../../build/trireme
output='' report='' shapes='' precisions='' wanted='' rounds=3 steps=6
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --trireme) trireme=$2; shift 2 ;;
    --output) output=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --variants) wanted=$2; shift 2 ;;
    --shapes) shapes=$2; shift 2 ;;
    --precisions) precisions=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
if [ ${#arguments[@]} -eq 0 ] || [ -z "$output" ]; then
  echo "against_pytorch: needs --output DIR and a configuration; see --help" >&2
  exit 64
fi
mkdir -p "$output"
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$output/inductor}  # later rounds reuse what the first compiled

# The first number after "median" of the object named $1 in file $2.
median_of() { grep -o "\"$1\": *{\"median\": *[-+.0-9eE]*" "$2" | grep -o '[-+.0-9eE]*$'; }
variants_of() {  # candidates for the fastest variant; argument: a result file of trireme
  local variant all='plain'
  if grep -q '"precision":"bf16"' "$1"; then all='autocast master'; fi
  if grep -q '"gpu":null' "$1"; then
    for variant in $all; do all+=" $variant:eager"; done
    if ! grep -q '"heads":\([0-9]*\),.*"kv_heads":\1,' "$1"; then
      for variant in $all; do all+=" $variant:gqa"; done
    fi
  fi
  echo "$all"
}
of_pytorch() {  # variant[:flag]... output
  local parts flags
  IFS=: read -ra parts <<< "$1"
  flags=("${parts[@]:1}")
  python3 "$here/pytorch_step.py" --like "$2/round-1-trireme.json" --variant "${parts[0]}" "${flags[@]/#/--}" --steps "$steps"
}

failed=0
compare() {  # output [argument of trireme]...
  local into=$1 variants=$wanted variant round fastest best rate file
  shift
  mkdir -p "$into"
  rm -f "$into"/round-*.json
  for ((round = 1; round <= rounds; ++round)); do
    "$trireme" bench step "${arguments[@]}" "$@" --steps "$steps" --json > "$into/round-$round-trireme.json"
    [ -n "$variants" ] || variants=$(variants_of "$into/round-1-trireme.json")
    fastest='' best=0
    for variant in $variants; do
      file=$into/round-$round-pytorch-${variant//:/-}.json
      if ! of_pytorch "$variant" "$into" > "$file"; then
        echo "against_pytorch: PyTorch, $variant: failed" >&2
        rm -f "$file"
        failed=1
        continue
      fi
      rate=$(median_of tokens_per_second "$file")
      if awk -v a="$rate" -v b="$best" 'BEGIN { exit !(a > b) }'; then fastest=$variant best=$rate; fi
    done
    [ -n "$fastest" ] || { echo "against_pytorch: all variants of PyTorch failed" >&2; exit 70; }
    variants=$fastest
  done
  python3 "$here/summary.py" --variant "${variants//:/-}" "$into" | tee "$into/summary.json"
}

if [ -z "$shapes$precisions" ]; then
  compare "$output"
  summaries=("$output/summary.json")
else
  summaries=()
  for precision in ${precisions:-fp32}; do
    for shape in ${shapes:-4x256}; do
      batch=${shape%x*}
      compare "$output/$precision-$shape" --precision "$precision" --set "training.sequence_length=${shape#*x}" \
        --set "training.micro_batch_size=$batch" --set "training.global_batch_size=$batch"
      summaries+=("$output/$precision-$shape/summary.json")
    done
  done
fi
[ "$failed" -eq 0 ] || echo "against_pytorch: some variants of PyTorch failed; the figures are those of the fastest remaining one" >&2
[ -n "$report" ] || exit 0

hardware=$(lscpu | sed -n 's/^Model name: *//p' | head -1)
for isa in amx_bf16 avx512_bf16 avx512f avx2 portable; do ! grep -qwm1 "$isa" /proc/cpuinfo || break; done
commit=$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git -C "$here" status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=' with changes'
slug() { tr '[:upper:]' '[:lower:]' <<< "$1" | sed 's/[^a-z0-9]\+/-/g; s/^-//; s/-$//'; }
name=$(basename "${arguments[0]}" .yaml)
file=$report/${name}_$(slug "$hardware $(nproc) cores $isa")_$(date -u +%Y-%m-%d).md
mkdir -p "$report"
{
  echo "# $name compared with PyTorch, $(date -u +%Y-%m-%d)"
  echo
  echo "$hardware, $(nproc) cores, $isa. Commit $commit."
  echo
  echo '```'
  echo "$command"
  echo '```'
  echo
  python3 "$here/summary.py" --table "${summaries[@]}"
} > "$file"
echo "against_pytorch: $file" >&2
