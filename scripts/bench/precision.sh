#!/usr/bin/env bash
# Trains configs/quickstart.yaml in fp32, bf16 and fp16 from the same initial weights. The final validation losses may differ by at most 1 % from fp32.
#   scripts/bench/precision.sh [--trireme PROGRAM] OUT_DIR [--set key=value]...
# Prints one line per precision; exits with 1 if one differs more. Takes a few minutes per precision on two cores.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
trireme=$root/build/trireme
if [ "${1:-}" = --trireme ]; then trireme=$(realpath "$2"); shift 2; fi
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 64; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$root"

scripts/corpus.sh data/quickstart/text
for part in train validation; do
  [ -e "data/quickstart/$part" ] || "$trireme" data build --tokenizer bytes --output "data/quickstart/$part" "data/quickstart/text/$part.txt"
done
failed=0 expected=''
for precision in fp32 bf16 fp16; do
  "$trireme" train configs/quickstart.yaml --set "run.directory=$out/$precision" --set "training.precision=$precision" "$@" \
    > "$out/$precision.log" 2>&1 || { tail "$out/$precision.log" >&2; exit 70; }
  loss=$(grep -o '"validation_loss":[-+.0-9eE]*' "$out/$precision/metrics.jsonl" | tail -1 | cut -d: -f2)
  expected=${expected:-$loss}
  awk -v p="$precision" -v a="$loss" -v b="$expected" \
    'BEGIN { apart = a / b - 1; printf "%s: validation loss %.5f, %+.3f %%\n", p, a, 100 * apart; exit !(apart < 0.01 && apart > -0.01) }' || failed=1
done
exit $failed
