#!/usr/bin/env bash
# Fuzzes the readers of files that may be damaged or hostile, with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#   ./scripts/fuzz.sh                          each target for 60 seconds
#   ./scripts/fuzz.sh 600 safetensors tokens   these, for 600 seconds each
# Starts from tests/fuzz/corpus/TARGET, which it leaves alone, and from what earlier runs found in build/fuzz/corpus/TARGET. An input that a reader
# does not survive lies in build/fuzz/findings/TARGET-*; once that is mended, it belongs in tests/fuzz/corpus. Exits 1 if there is one.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
all=(safetensors manifest tokens foreign_tokens tokenizer huggingface black_box json_lines run_folder)
[[ $# -gt 0 ]] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [[ -f tests/fuzz/fuzz_$target.cpp ]] || { echo "fuzz: $target: no such target; there are: ${all[*]}" >&2; exit 64; }
done
clang=$(command -v clang++ || command -v clang++-{19,18,17,16,15,14} | head -n 1 || true)
[[ -n $clang ]] || { echo "fuzz: clang++ is not installed; on Debian and Ubuntu: apt-get install clang" >&2; exit 69; }

build=build/fuzz
mkdir -p $build/findings
scratch=$(mktemp -d -p "$([[ -d /dev/shm ]] && echo /dev/shm || echo /tmp)" trireme-fuzz-XXXXXX)  # libFuzzer leaves some processes without a farewell
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
echo "fuzz: building ${targets[*]}" >&2
cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" > $build/build.log 2>&1 && cmake --build $build --target "${targets[@]/#/fuzz_}" >> $build/build.log 2>&1 \
  || { tail -n 40 $build/build.log >&2; exit 70; }
printf '%-14s %12s %8s %8s %8s %9s\n' target executions seconds edges corpus findings > $build/table
status=0
for target in "${targets[@]}"; do
  program=$build/tests/fuzz_$target corpus=$build/corpus/$target log=$build/$target.log
  mkdir -p "$corpus"
  echo "fuzz: $target for $seconds s; log in $log" >&2
  started=$SECONDS
  "$program" "$corpus" "tests/fuzz/corpus/$target" -dict="tests/fuzz/$target.dict" -max_total_time="$seconds" -max_len=4096 \
    -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$build/findings/$target-" -print_final_stats=1 > "$log" 2>&1 \
    || { status=1; tail -n 40 "$log" >&2; }
  took=$((SECONDS - started))
  # What covers the same code goes.
  rm -rf "$corpus.merged"
  mkdir "$corpus.merged"
  if "$program" -merge=1 "$corpus.merged" "$corpus" >> "$log" 2>&1; then
    rm -rf "$corpus"
    mv "$corpus.merged" "$corpus"
  fi
  printf '%-14s %12s %8s %8s %8s %9s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$took" \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | sort -n | tail -n 1)" "$(ls "$corpus" | wc -l)" \
    "$(find $build/findings -name "$target-*" | wc -l)" >> $build/table
done
cat $build/table
exit $status
