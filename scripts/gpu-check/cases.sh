#!/usr/bin/env bash
# Runs each test case of a Catch2 program in a process of its own, so that an illegal access on the GPU, after which CUDA refuses every call of its
# process, fails one case only.
#   cases.sh NAME PROGRAM FILTER JOBS SECONDS [WRAPPER...]     in the environment of gpu-check.sh (see `cases` in lib.sh)
# No case starts after case_end, and none runs longer than SECONDS. Records one result for each case, and NAME for all of them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/lib.sh"
name=$1 program=$2 filter=$3 jobs=$4 seconds=$5
wrapper=("${@:6}")
logs=$output/logs/$part-cases-$(tr -c 'a-zA-Z0-9\n' - <<< "$name" | cut -c 1-60)
rm -rf "$logs"
mkdir -p "$logs"
trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM

# Catch2 2 and 3 list names differently; the exit code of version 2 is the number of cases.
list() {
  { timeout 60 "$program" --list-test-names-only "$filter" || true; } > "$logs/names" 2>"$logs/names.err"
  if [ ! -s "$logs/names" ] || grep -q 'Unrecogni[sz]ed token' "$logs/names" "$logs/names.err"; then
    { timeout 60 "$program" --list-tests --verbosity quiet "$filter" || true; } > "$logs/names" 2>"$logs/names.err"
  fi
}
# What stopped the case: the first failed assertion of Catch2 with its messages, or a line that names an error, or the last line.
cause() {
  awk '/FAILED:/ { for (i = 0; i < 5 && getline > 0 && NF; ++i) { sub(/^ +/, ""); printf "%s ", $0 } exit }' "$1" | grep . ||
    grep -m 1 -iE '={9} (error|invalid|uninitialized|race)|error|illegal|terminate' "$1" || tail -n 1 "$1"
}
# The seconds that a case may take, at most those left of the part.
allowed() {
  local left=$((case_end - EPOCHSECONDS))
  echo $((left < seconds ? left : seconds))
}
run_case() {
  local number=$1 case=$2 log=$logs/$1.log began=$EPOCHSECONDS status=0 limit escaped
  limit=$(allowed)
  if [ "$limit" -le 0 ]; then
    kind=case check "$case" skip 'the time of the part was over'
    return
  fi
  escaped=$(sed 's/[][\\,]/\\&/g' <<< "$case")
  timeout --kill-after=5 "$limit" "${wrapper[@]}" "$program" "$escaped" --warn NoTests > "$log" 2>&1 &
  trap 'kill $! 2>/dev/null; exit 143' TERM
  wait $! || status=$?
  if [ $status -eq 0 ]; then
    kind=case check "$case" pass "$((EPOCHSECONDS - began)) s"
    echo pass > "$logs/$number.result"
  elif [ $status -eq 124 ] && [ "$limit" -lt "$seconds" ]; then
    kind=case check "$case" skip "the time of the part was over after $limit s"
  else
    kind=case check "$case" fail "$([ $status -eq 124 ] && echo "stopped after $limit s" || echo "code $status: $(cause "$log")")" "${wrapper[*]##*/}"
    echo fail > "$logs/$number.result"
  fi
}

list
sed -i 's/^ *//; s/ *$//; /^$/d' "$logs/names"
mapfile -t names < "$logs/names"
[ ${#names[@]} -gt 0 ] || { check "$name" fail "${program##*/} lists no case: $(tail -n 1 "$logs/names.err")" 'all pass'; exit 0; }
number=0
for case in "${names[@]}"; do
  [ "$(allowed)" -gt 0 ] || break
  while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  number=$((number + 1))
  run_case $number "$case" &
done
wait
passed=$(cat "$logs"/*.result 2>/dev/null | grep -c pass || true)
failed=$(cat "$logs"/*.result 2>/dev/null | grep -c fail || true)
late=$((${#names[@]} - passed - failed))
figure="$passed of ${#names[@]} cases$([ "$failed" -eq 0 ] || echo ", $failed failed")$([ $late -eq 0 ] || echo ", no time for $late")"
outcome=pass
[ $late -eq 0 ] || outcome=info
[ "$passed" -gt 0 ] || outcome=skip
[ "$failed" -eq 0 ] || outcome=fail
check "$name" $outcome "$figure" 'all pass'
