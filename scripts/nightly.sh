#!/usr/bin/env bash
# Everything that is too long for the default suite: slow tests with clang-tidy, sanitizers, planted and generated bugs, fuzzing. It continues where it stopped: each
# finished item is a row of nightly/COMMIT.md, and an item with a row is not run again. Exits 1 if a row is not "ok".
#   ./scripts/nightly.sh [--minutes N] [ITEM...]     starts no item after N minutes; items: slow files asan tsan mutations verify-mutations generated fuzz, default all
# Planted bugs run in slices: the item keeps its own results in nightly/COMMIT-mutations.md and continues there. Of the generated bugs a sample is drawn by the commit;
# nightly/COMMIT-generated.log lists the survivors.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=100000
if [ "${1:-}" = --minutes ]; then minutes=${2:?nightly: --minutes needs a number}; shift 2; fi
items=("$@")
[ ${#items[@]} -gt 0 ] || items=(slow files asan tsan mutations verify-mutations generated fuzz)
commit=$(git rev-parse --short=9 HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "nightly: commit the changes first, as results are filed under the commit" >&2; exit 64; }
mkdir -p nightly
table=nightly/$commit.md
[ -s "$table" ] || printf '# Long tests of %s\n\n%s\n\n| item | result | seconds | finished |\n|---|---|---|---|\n' "$commit" \
  "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores" > "$table"

# run NAME COMMAND...: a row for the command, with the last lines of its output in nightly/COMMIT-NAME.log
run() {
  local name=$1 started=$SECONDS status=0
  shift
  if grep -qF "| $name |" "$table"; then return; fi
  [ $SECONDS -lt $((minutes * 60)) ] || { echo "nightly: $name left for the next call" >&2; return 0; }
  echo "nightly: $name" >&2
  nice "$@" > "nightly/$commit-${name//[^a-z0-9]/-}.log" 2>&1 || status=$?
  local result=ok
  [ $status -eq 0 ] || result="exit code $status"
  printf '| %s | %s | %d | %s |\n' "$name" "$result" $((SECONDS - started)) "$(date -u +%Y-%m-%dT%H:%M)" >> "$table"
}

sanitized() { cmake --preset "$1" && cmake --build --preset "$1" && ctest --preset "$1" --parallel "$(nproc)"; }

./scripts/setup.sh --tests
for item in "${items[@]}"; do
  case $item in
    slow)
      while read -r test; do run "slow: $test" ctest --test-dir build --output-on-failure --no-tests=error -R "^$(sed 's/[][().*+?^$|\\]/\\&/g' <<< "$test")\$"; done < <(
        ctest --test-dir build -N -L slow | sed -n 's/^ *Test *#[0-9]*: //p') ;;
    files) run "each file compiled alone" bash -c 'cmake -S . -B build/files -G Ninja -DTRIREME_UNITY=OFF -DTRIREME_TESTS=ON && cmake --build build/files' ;;
    asan) run asan bash -c "$(declare -f sanitized); set -e; sanitized cpu-asan-ubsan" ;;
    tsan) run tsan bash -c "$(declare -f sanitized); set -e; sanitized cpu-tsan" ;;
    mutations) run mutations ./scripts/mutations.sh --results "nightly/$commit-mutations.md" ;;
    verify-mutations) run verify-mutations ./scripts/mutations.sh --verify ;;
    generated) run generated bash -c 'scripts/mutate.py --run --sample 72 --seed "$0" --results "$1" && scripts/mutate.py --report "$1"' "$commit" "nightly/$commit-generated.jsonl" ;;
    fuzz) run fuzz ./scripts/fuzz.sh 600 ;;
    *) echo "nightly: unknown item $item" >&2; exit 64 ;;
  esac
done
cat "$table"
! grep -qF '| exit code ' "$table"
