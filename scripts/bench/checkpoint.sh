#!/usr/bin/env bash
# Compares the write speed of a checkpoint with `dd` of the same bytes and fsync, alternately on the same file system. Also reports how long a save stalls
# training.
#   scripts/bench/checkpoint.sh [--trireme PROGRAM] [--rounds N] [--set key=value]... DIRECTORY...
# Each round trains a few steps of a model with about 300 MB of state on one rank and saves it once, at the end, with no other work running; then dd writes
# the same number of bytes. The speed covers the complete save: writing, digests, fsync, reading back, publishing. Prints one line per round and the median
# per directory.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

trireme=$here/../../build/trireme
rounds=5
directories=()
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --trireme) trireme=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --set) arguments+=(--set "$2"); shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) directories+=("$1"); shift ;;
  esac
done
if [ ${#directories[@]} -eq 0 ]; then
  echo "checkpoint: needs a directory on the file system to measure; see --help" >&2
  exit 64
fi
trireme=$(realpath "$trireme")

work=
trap 'rm -rf "$work"' EXIT
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
field() { grep '"event":"checkpoint"' "$work/run/metrics.jsonl" | tail -1 | sed "s/.*\"$1\":\([-+.0-9eE]*\).*/\1/"; }

printf '%-20s %6s %12s %10s %10s %7s %10s\n' directory round bytes trireme dd ratio stall
for directory in "${directories[@]}"; do
  work=$(mktemp -d "$directory/trireme-bench-XXXXXX")
  for ((i = 0; i < 400; ++i)); do echo "Ship $i has three banks of oars, and all of them pull together."; done > "$work/text"
  "$trireme" data build --tokenizer bytes --output "$work/tokens" "$work/text" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  cat > "$work/run.yaml" << YAML
run: {directory: $work/run}
model: {layers: 8, hidden_size: 512, heads: 8, ffn_size: 1408}
training: {steps: 1000000, sequence_length: 16, global_batch_size: 1, schedule: {warmup_steps: 1}}
data: {train: [$work/tokens]}
YAML
  ratios=()
  for ((round = 1; round <= rounds; ++round)); do
    "$trireme" train "$work/run.yaml" "${arguments[@]}" --set checkpoint.keep=1 --max-steps $((round * 2)) > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    bytes=$(field bytes)
    begin=$(date +%s.%N)
    dd if=/dev/zero of="$work/dd" bs=4M count="$bytes" iflag=count_bytes conv=fsync status=none
    end=$(date +%s.%N)
    rm "$work/dd"
    line=$(awk -v bytes="$bytes" -v save="$(field write_seconds)" -v dd="$(awk -v a="$begin" -v b="$end" 'BEGIN { print b - a }')" \
      'BEGIN { printf "%.2f %.2f %.2f", bytes / save / 1e9, bytes / dd / 1e9, dd / save }')
    read -r ours theirs ratio <<< "$line"
    ratios+=("$ratio")
    printf '%-20s %6d %12d %5s GB/s %5s GB/s %7s %8.4f s\n' "$directory" "$round" "$bytes" "$ours" "$theirs" "$ratio" "$(field stall_seconds)"
  done
  printf '%-20s median ratio %s\n' "$directory" "$(printf '%s\n' "${ratios[@]}" | median)"
  rm -rf "$work"
done
