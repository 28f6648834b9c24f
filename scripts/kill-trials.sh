#!/bin/sh
# Kills training runs at random moments and resumes them, TRIALS times (default 300), two trials side by side: each run must end with the bits of an
# undisturbed one. Prints the table of all trials as Markdown. Trial n is always the same layout, ZeRO stage and draw of moments and victims.
#   scripts/kill-trials.sh [TRIALS] [BUILD_DIRECTORY] [layout|method|security]
# layout: every layout and ZeRO stage; method: local updates and every compression of gradients, which keep state of their own; security: the run of
# configs/trust.yaml, with two data ranks that lie.
set -eu
trials=${1:-300}
build=${2:-$(dirname "$0")/../build}
subject=${3:-layout}
[ -x "$build/tests/test_e2e" ] || { echo "$build/tests/test_e2e is missing: build with -DTRIREME_TESTS=ON" >&2; exit 66; }
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

for part in 0 1; do
  # Messages of a part pass through; its table is merged with the other's.
  (
    code=0
    TRIREME_KILL_TRIALS=$trials TRIREME_KILL_PART=$part/2 "$build/tests/test_e2e" "kill: every $subject*" >"$results/$part" || code=$?
    echo $code >"$results/code.$part"
  ) &
done
wait

echo "| layout | ZeRO | trials | kills | inside a save | resumes | differences |"
echo "|---|---|---|---|---|---|---|"
cat "$results/0" "$results/1" | grep '^| [0-9]' | sort
cat "$results/0" "$results/1" | grep '^| [0-9]' |
  awk -F'|' '{ for (i = 4; i <= 8; i++) sum[i] += $i } END { printf "| all | | %d | %d | %d | %d | %d |\n", sum[4], sum[5], sum[6], sum[7], sum[8] }'
failed=0
for part in 0 1; do
  [ "$(cat "$results/code.$part")" = 0 ] || { failed=1; cat "$results/$part"; }
done
exit $failed
