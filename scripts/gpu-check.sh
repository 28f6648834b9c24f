#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine with GPUs, without a network. The first figures come first, and every result is on disk at once.
#   ./scripts/gpu-check.sh                              builds here; ten minutes
#   ./scripts/gpu-check.sh --bundle FILE --minutes 60   uses the archive of scripts/bundle.sh (or its unpacked folder) instead of building
#   ./scripts/gpu-check.sh --packages DIR               builds with the Debian packages (*.deb) in DIR, unpacked and not installed; of Debian 12:
#       libopenmpi-dev openmpi-bin openmpi-common libopenmpi3 libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libpmix2 libmunge2 libdnnl-dev
#       libdnnl2 ocl-icd-libopencl1 libyaml-cpp-dev libyaml-cpp0.7 nlohmann-json3-dev libcli11-dev libxxhash-dev libpcre2-dev libpcre2-8-0
#       libutf8proc-dev libutf8proc2 catch2 libboost-context1.74.0 libboost-context1.74-dev libboost1.74-dev
# Parts in order; a part that fails does not stop the next, and one that does not fit the time left is skipped:
#   probe       GPUs, topology, MIG, ECC, driver, libraries, tools
#   build       the program, or the bundle unpacked; its CUDA release against the driver's; one launch
#   smoke       five steps in fp32 and bf16, GPU against CPU
#   step        the training step of --config with and without a CUDA graph: tokens per second, equal losses
#   kernels     every test case of every kernel against the reference, each in a process of its own
#   bench       trireme bench kernels, with cuDNN's attention where libcudnn is; kernels at the step's shapes and beyond 2^31 elements against fp64 on the host
#   ranks       two or more GPUs: collectives, parity over NCCL, overlap, graphs; always: a graph, a killed rank, a stopped peer
#   sanitizer   compute-sanitizer: memcheck, synccheck, racecheck, initcheck
#   parity      training against the CPU, layouts that share a GPU, resuming, evaluation, generation
#   pytorch     products and the step beside PyTorch, where python3 has it
#   profile     profiles of nsys and ncu, where they are installed
# Options:
#   --minutes N      time for everything, default 10
#   --only PART,...  --skip PART,...   probe and build are always done
#   --continue       keeps the results of earlier calls and does only parts that have not ended
#   --config FILE    of the step: default configs/llama-1.3b-h200.yaml, its micro-batch halved until it fits
#   --work DIR       builds and scratch, default build/gpu-check
#   --output DIR     results.jsonl, report.md, samples.csv, logs, profiles; default WORK/output
#   --report FILE    instead of OUTPUT/report.md
#   --commit ID      for the report, where this is no git checkout
#   --dry-run        says what each part would run or why it would be skipped; needs no GPU, runs and writes nothing
#   --rehearse       runs what CPUs can run, at toy sizes, with build/trireme, to try this script: its figures mean nothing
# Exit code: 0 no check failed, 1 one failed or there is no GPU, 64 bad usage, 128 + N stopped by signal N. A speed below its forecast is no failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
for file in lib report prepare correctness speed ranks; do source "$here/gpu-check/$file.sh"; done
parts=(probe build smoke step kernels bench ranks sanitizer parity pytorch profile)
# Seconds that a part needs to be useful, and those that it may take.
declare -A needs=([probe]=0 [build]=0 [smoke]=20 [step]=60 [kernels]=45 [bench]=60 [ranks]=60 [sanitizer]=60 [parity]=90 [pytorch]=120 [profile]=90)
declare -A limits=([probe]=40 [build]=600 [smoke]=120 [step]=400 [kernels]=900 [bench]=900 [ranks]=900 [sanitizer]=1800 [parity]=600 [pytorch]=700 [profile]=420)
# The forecast of the 1.3B step in bf16 with a sequence length of 2048.
readonly expected_rate='measured: 61.6 k tokens/s on an H100, 63.9 k on an H200'

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; }
bad_usage() {
  echo "gpu-check: $1; see --help" >&2
  exit 64
}
packages='' bundle='' only='' skip='' report='' commit='' mode=run again=yes minutes=10 output=''
config=$root/configs/llama-1.3b-h200.yaml
work=$root/build/gpu-check
[ ! -e "$root/BUILD" ] || { bundle=$root; work=$PWD/gpu-check; }  # this script lies in an unpacked bundle
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --dry-run) mode=dry; shift; continue ;;
    --rehearse) mode=rehearse; shift; continue ;;
    --continue) again=no; shift; continue ;;
    --packages | --bundle | --only | --skip | --config | --work | --output | --report | --commit | --minutes) [ $# -ge 2 ] || bad_usage "$1 needs a value" ;;
    *) bad_usage "unknown option $1" ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
[[ $minutes =~ ^[1-9][0-9]{0,3}$ ]] || bad_usage "--minutes $minutes: allowed whole numbers from 1 to 9999"
for path in packages bundle config; do
  [ -z "${!path}" ] || [ -e "${!path}" ] || bad_usage "--$path: ${!path} does not exist"
  [ -z "${!path}" ] || declare "$path=$(realpath "${!path}")"
done
[ -z "$packages" ] || [ -z "$bundle" ] || bad_usage "--packages is for building, --bundle for not building"
for part in ${only//,/ } ${skip//,/ }; do
  [[ " ${parts[*]} " == *" $part "* ]] || bad_usage "unknown part $part; allowed ${parts[*]}"
done

started=$EPOCHSECONDS deadline=$((EPOCHSECONDS + 60 * minutes - 5))  # the last seconds are for the report
device=cuda
gpus=$(nvidia-smi --query-gpu=index,name,uuid,compute_cap,memory.total,driver_version,mig.mode.current,ecc.mode.current,ecc.errors.uncorrected.volatile.total,pcie.link.gen.max,pcie.link.width.max \
  --format=csv,noheader 2>/dev/null) || gpus=''
if [ -z "$gpus" ] && [ "$mode" = run ]; then
  echo "gpu-check: there is no GPU here: nvidia-smi is not installed, or sees none. Nothing was built, measured or written." >&2
  exit 1
fi
if [ "$mode" = rehearse ]; then
  device=cpu gpus='0, rehearsal on the CPU, none, 0.0, 0 MiB, none, none, none, 0, 0, 0'
elif [ -z "$gpus" ]; then
  echo 'There is no GPU here; the dry run assumes one of compute capability 9.0.'
  gpus='0, assumed GPU, none, 9.0, 0 MiB, none, none, none, 0, 0, 0'
fi
gpu_count=$(wc -l <<< "$gpus")
IFS=, read -r _ gpu_name _ gpu_capability _ gpu_driver _ <<< "$(head -n 1 <<< "${gpus//, /,}")"
if [ -z "$bundle" ] && [ "$mode" != rehearse ] && [ -z "$packages" ] && [ -n "$(missing_to_build)" ]; then
  echo "gpu-check: missing to build: $(missing_to_build)- install them, or use --bundle FILE with an archive of scripts/bundle.sh" >&2
fi

output=${output:-$work/output}
exec 3>/dev/null
if [ "$mode" = dry ]; then
  exec 3>&1
else
  mkdir -p "$work" "$output/logs"
  work=$(realpath "$work") output=$(realpath "$output")
fi
results=$output/results.jsonl scratch=$work/scratch
report=${report:-$output/report.md}
[ "$mode" = dry ] || [ $again = no ] || rm -rf "$results" "$output"/{logs/*,samples.csv,*.json,pytorch} "$scratch"
commit=${commit:-$(sed -n 's/^commit //p' "$root/BUILD" 2>/dev/null || git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)}
[ -z "$(git -C "$root" status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=' with changes'
have_torch() { python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; }
find_libraries
find_programs

# ---- signals ----
part='' child='' sampler=''
stopped() {
  local signal=$1 number=$2
  trap '' TERM INT HUP
  stop_running
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
  end_part fail "stopped by SIG$signal"
  stop_sampler
  write_report "stopped by SIG$signal in part $part"
  trap - EXIT
  exit $((128 + number))
}
leave() {
  stop_sampler
  write_report
}
trap leave EXIT
trap 'stopped TERM 15' TERM
trap 'stopped INT 2' INT
trap 'stopped HUP 1' HUP

# ---- parts ----
end_part() {  # pass|fail|partial|skip REASON
  record "\"event\": \"end\", \"result\": \"$1\", \"seconds\": $((EPOCHSECONDS - began)), \"began\": $began, \"ended\": $EPOCHSECONDS, \"reason\": \"$(json_text "$2")\""
  echo "gpu-check: $part: $1, $((EPOCHSECONDS - began)) s${2:+: $2}" >&2
}
wants() { [[ -z $only || ,$only, == *",$1,"* ]] && [[ ,$skip, != *",$1,"* ]]; }
run_part() {
  local log=$output/logs/$part.log status=0 left=$((deadline - EPOCHSECONDS))
  began=$EPOCHSECONDS
  part_end=$((EPOCHSECONDS + (limits[$part] < left ? limits[$part] : left)))
  if [ "$mode" = dry ]; then
    echo "== $part: needs ${needs[$part]} s, at most ${limits[$part]} s"
    (set -e; "part_$part")
    return 0
  fi
  if ((left < needs[$part] || left <= 0)); then
    end_part skip "needs about ${needs[$part]} s, $((left < 0 ? 0 : left)) s are left"
    return 0
  fi
  if [[ $part != probe && $part != build && ! -x $trireme ]]; then
    end_part skip 'there is no program: see part build'
    return 0
  fi
  if [ -s "$results" ]; then  # what an interrupted call left of this part
    { grep -v "\"part\": \"$part\"," "$results" || true; } > "$results.new"
    mv "$results.new" "$results"
  fi
  echo "gpu-check: $part ..." >&2
  (set -e; trap - EXIT; "part_$part") > "$log" 2>&1 &
  child=$!
  wait $child || status=$?
  child=''
  if [ $status -eq 0 ]; then
    end_part "$(result_of_part)" "$(reason_of_part)"
  else
    end_part fail "code $status; the end of $part.log: $(tail -n 1 "$log")"
  fi
}
# A part fails with its first check. It is skipped where it skipped all of them, and partial where cases had no time: --continue repeats both.
result_of_part() {
  grep "\"part\": \"$part\", \"check\"" "$results" | awk '
    /"result": "fail"/ { failed = 1 } /no time for/ { late = 1 } !/"result": "skip"/ { done = 1 }
    END { print failed ? "fail" : !done ? "skip" : late ? "partial" : "pass" }'
}
reason_of_part() { [ "$(result_of_part)" != skip ] || grep "\"part\": \"$part\", \"check\"" "$results" | sed -n 's/.*"figure": "\([^"]*\)".*/\1/p' | sort -u | paste -sd ';'; }
ended_before() { grep -qs "\"part\": \"$1\", \"event\": \"end\", \"result\": \"\(pass\|fail\)\"" "$results"; }

start_sampler
for part in "${parts[@]}"; do
  if [ $again = no ] && [ "$mode" != dry ] && ended_before "$part"; then continue; fi
  if [[ $part != probe && $part != build ]] && ! wants "$part"; then continue; fi
  run_part
  [ $part != build ] || find_programs
  write_report
done
[ "$mode" != dry ] || exit 0
stop_sampler
write_report
echo "gpu-check: $((EPOCHSECONDS - started)) s: $(counts); report: $report" >&2
! has_failed
