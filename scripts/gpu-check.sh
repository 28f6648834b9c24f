#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine with a GPU, without a network. Ends with a table and writes bench/<model>_<hardware>_<date>.md.
#   ./scripts/gpu-check.sh                        builds here, then does all parts, in less than 25 minutes
#   ./scripts/gpu-check.sh --bundle FILE          uses the archive of scripts/bundle.sh instead of building
#   ./scripts/gpu-check.sh --packages DIR         builds with the Debian packages (*.deb) in DIR, unpacked and not installed; of Debian 12:
#       libopenmpi-dev openmpi-bin openmpi-common libopenmpi3 libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libpmix2 libmunge2 libdnnl-dev
#       libdnnl2 ocl-icd-libopencl1 libyaml-cpp-dev libyaml-cpp0.7 nlohmann-json3-dev libcli11-dev libxxhash-dev libpcre2-dev libpcre2-8-0
#       libutf8proc-dev libutf8proc2 catch2 libboost-context1.74.0 libboost-context1.74-dev libboost1.74-dev
# Parts, each with a time limit and a log; a part that fails does not stop the next:
#   tools       what is here: GPU, driver, CUDA, compilers, MPI, PyTorch
#   build       the binary and the device tests for this GPU
#   kernels     every device kernel against the reference (test_kernels_gpu)
#   parity      training on the GPU against the CPU, and 3D layouts with eight ranks on one GPU against one rank
#   sanitizer   compute-sanitizer over the kernel tests: memcheck, and racecheck over a part of them
#   bench       trireme bench kernels: matrix products, attention, kernels bound by memory; cuBLAS through PyTorch at the same shapes
#   step        the training step of --config, by turns with the same step in PyTorch where python3 has it
# Options:
#   --only PART,...  --skip PART,...   tools and build are always done where a later part needs them
#   --config FILE    of the step: default configs/llama-1.3b-h200.yaml, its micro-batch halved until it fits
#   --work DIR       builds, scratch, default build/gpu-check; results of parts done before are kept there and go into the table
#   --logs DIR       logs and figures, default WORK/logs
#   --report FILE    instead of bench/<model>_<hardware>_<date>.md
#   --commit ID      for the report, where this is no git checkout
#   --dry-run        goes through the parts on the CPU at toy sizes, to try this script: its figures mean nothing, its report goes to WORK
# Exit code: 0 all checks done passed, 1 one failed or there is no GPU, 64 bad usage.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
parts=(tools build kernels parity sanitizer bench step)

packages='' bundle='' only='' skip='' report='' commit='' dry=no logs=''
config=$root/configs/llama-1.3b-h200.yaml
work=$root/build/gpu-check
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
bad_usage() {
  echo "gpu-check: $1; see --help" >&2
  exit 64
}
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --dry-run) dry=yes; shift; continue ;;
    --packages | --bundle | --only | --skip | --config | --work | --logs | --report | --commit) [ $# -ge 2 ] || bad_usage "$1 needs a value" ;;
    *) bad_usage "$1 is not understood" ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
for path in packages bundle config; do
  [ -z "${!path}" ] || [ -e "${!path}" ] || bad_usage "--$path: there is no ${!path}"
  [ -z "${!path}" ] || declare "$path=$(realpath "${!path}")"
done
[ -z "$packages" ] || [ -z "$bundle" ] || bad_usage "--packages is for building, --bundle for not building"
for part in ${only//,/ } ${skip//,/ }; do
  [[ " ${parts[*]} " == *" $part "* ]] || bad_usage "$part is not a part: ${parts[*]}"
done

gpu=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || gpu=''
if [ -z "$gpu" ] && [ "$dry" = no ]; then
  echo "gpu-check: there is no GPU here: nvidia-smi is not installed, or sees none. Nothing was built, measured or written." >&2
  exit 1
fi
[ "$dry" = no ] || gpu='dry run on the CPU, 0.0, 0 MiB, none'
IFS=, read -r gpu_name gpu_capability gpu_memory gpu_driver <<< "${gpu//, /,}"

mkdir -p "$work"
work=$(realpath "$work")
logs=${logs:-$work/logs}
mkdir -p "$logs"
logs=$(realpath "$logs")
started=$SECONDS
readonly whole_limit=1440  # seconds

# ---- figures and checks ----
# A line of the final table: name, pass | fail | info | skip, figure, aim.
check() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" >> "$logs/$part.results"; }
short() { awk -v a="$1" 'BEGIN { printf "%.4g", a }'; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 >= b + 0) }'; }
# check_at_least NAME FIGURE AIM UNIT: the aims are those of one H200 in bf16, elsewhere figures are only told.
check_at_least() {
  local figure
  figure=$(short "$2")
  if [[ $gpu_name != *H200* ]]; then
    check "$1" info "$figure $4" "on an H200 at least $3 $4"
  elif at_least "$2" "$3"; then
    check "$1" pass "$figure $4" "at least $3 $4"
  else
    check "$1" fail "$figure $4" "at least $3 $4"
  fi
}
# The objects of the array NAME in a file that holds one JSON object, one a line; they are flat.
rows_of() { tr -d '\n' < "$1" | sed -n "s/.*\"$2\": *\[\([^]]*\)\].*/\1/p" | sed 's/}, *{/}\n{/g'; }
# The value of KEY in each line of JSON.
value_of() { sed -n "s/.*\"$1\": *\(\"[^\"]*\"\|[-+.0-9eE][-+.0-9eE]*\|null\).*/\1/p" | tr -d '"'; }
# Lines of flat JSON as a Markdown table.
markdown() {
  awk '{
    gsub(/^\{|\}$/, ""); n = split($0, fields, /, *"/); head = line = "|"; rule = "|"
    for (i = 1; i <= n; ++i) {
      split(fields[i], pair, /": */); gsub(/"/, "", pair[1]); gsub(/"/, "", pair[2])
      value = pair[2] + 0 == pair[2] && pair[2] !~ /^[0-9]+$/ ? sprintf("%.4g", pair[2]) : pair[2]
      head = head " " pair[1] " |"; rule = rule "---|"; line = line " " value " |"
    }
    if (NR == 1) print head "\n" rule
    print line
  }'
}
# limited SECONDS command...: no longer than that, than what the part has left, or than the whole run has left.
limited() {
  local seconds=$1 left=$((whole_limit - (SECONDS - started))) of_part=$((part_end - SECONDS))
  shift
  ((of_part < left)) && left=$of_part
  ((seconds < left)) && left=$seconds
  ((left > 0)) || { echo "no time is left for: $*"; return 124; }
  echo "+ $*" >&2
  timeout --kill-after=10 "$left" "$@"
}
wants() {
  [[ -z $only || ,$only, == *",$1,"* ]] && [[ ,$skip, != *",$1,"* ]]
}

# ---- tools ----
have_torch() { python3 -c 'import sys, torch; sys.exit(not (torch.cuda.is_available() or sys.argv[1] == "yes"))' "$dry" 2>/dev/null; }
version_of() {
  "$@" 2>&1 | awk 'match($0, /[0-9]+\.[0-9]+[.0-9]*/) { print substr($0, RSTART, RLENGTH); found = 1; exit } END { if (!found) print "of no version" }'
}
part_tools() {
  check GPU info "$gpu_name, compute capability $gpu_capability, $gpu_memory, driver $gpu_driver"
  local tool found=''
  for tool in nvcc cmake ninja g++ mpirun python3 compute-sanitizer; do
    found+="$tool $(command -v "$tool" >/dev/null && version_of "$tool" --version || echo missing), "
  done
  check tools info "${found%, }"
  if have_torch; then
    check PyTorch info "$(python3 -c 'import torch; print(torch.__version__)')"
  else
    check PyTorch skip "python3 has no torch that sees the GPU: nothing is compared with it"
  fi
  nvidia-smi || true
  uname -a
}

# ---- build ----
use_packages() {
  local unpacked=$work/packages triple deb
  triple=$(uname -m)-linux-gnu
  if [ ! -e "$unpacked/done" ]; then
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    for deb in "$packages"/*.deb; do dpkg -x "$deb" "$unpacked"; done
    # What update-alternatives would have done.
    for tool in mpirun mpiexec; do [ -e "$unpacked/usr/bin/$tool" ] || ln -s orterun "$unpacked/usr/bin/$tool"; done
    for tool in mpicxx mpicc; do
      [ -e "$unpacked/usr/bin/$tool" ] || ln -s opal_wrapper "$unpacked/usr/bin/$tool"
      local data=$unpacked/usr/share/openmpi/$tool-wrapper-data.txt
      [ -e "$data" ] || ln -s "$tool.openmpi-wrapper-data.txt" "$data"
    done
    touch "$unpacked/done"
  fi
  export PATH=$unpacked/usr/bin:$PATH OPAL_PREFIX=$unpacked/usr CMAKE_PREFIX_PATH=$unpacked/usr
  local libraries=$unpacked/usr/lib/$triple
  export LD_LIBRARY_PATH=$libraries:$libraries/openmpi/lib:$libraries/pmix2/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LIBRARY_PATH=$libraries CPATH=$unpacked/usr/include PMIX_PREFIX=$unpacked/usr
  export PMIX_PKGLIBDIR=$libraries/pmix2/lib/pmix OPAL_PKGDATADIR=$unpacked/usr/share/openmpi OPAL_SYSCONFDIR=$unpacked/etc/openmpi
}
# Sets trireme, tests: the programs, built or unpacked.
find_programs() {
  [ -z "$packages" ] || use_packages
  if [ -n "$bundle" ]; then
    trireme=$(ls -d "$work"/bundle/*/trireme 2>/dev/null || true)
    tests=$(ls -d "$work"/bundle/*/test_kernels_gpu 2>/dev/null || true)
  else
    trireme=$work/build/trireme
    tests=$work/build/tests/test_kernels_gpu
  fi
  [ "$dry" = no ] || [ -n "$bundle" ] || { trireme=$root/build/trireme tests=; }
}
part_build() {
  if [ -n "$bundle" ]; then
    rm -rf "$work/bundle"
    mkdir -p "$work/bundle"
    tar -C "$work/bundle" -xzf "$bundle"
    find_programs
    cat "$(dirname "$trireme")/BUILD"
    check build pass "from $(basename "$bundle"), commit $(sed -n 's/^commit //p' "$(dirname "$trireme")/BUILD")"
  elif [ "$dry" = no ]; then
    find_programs
    local generator=()
    command -v ninja >/dev/null && [ ! -e "$work/build/CMakeCache.txt" ] && generator=(-G Ninja)
    limited 120 cmake -S "$root" -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=ON \
      "-DCMAKE_CUDA_ARCHITECTURES=${gpu_capability//./}-real"
    limited 480 cmake --build "$work/build" --parallel "$(nproc)" --target trireme test_kernels_gpu
    check build pass "for sm_${gpu_capability//./} with nvcc $(version_of nvcc --version)"
  else
    find_programs
    check build pass "build/trireme"
  fi
  [ -x "$trireme" ] || { echo "there is no $trireme"; return 1; }
  "$trireme" --version
}

# ---- correctness ----
part_kernels() {
  find_programs
  if [ ! -x "$tests" ]; then
    check 'kernel tests' skip "there is no test_kernels_gpu here"
    return
  fi
  local status=0 last
  limited 240 "$tests" '~[slow]' --durations yes --warn NoTests || status=$?
  last=$(grep -E '^(All tests passed|test cases:)' "$logs/$part.log" | tail -n 1)
  check 'kernels against the reference, on the device' "$([ "$status" -eq 0 ] && echo pass || echo fail)" "${last:-no result, code $status}" 'all pass'
}

# The losses of a run's metrics, one a line.
losses_of() { grep '"loss"' "$1/metrics.jsonl" | value_of loss; }
# The largest relative difference between the losses of two runs; nothing where their numbers of steps differ or are 0.
loss_difference() {
  paste <(losses_of "$1") <(losses_of "$2") | awk '
    NF != 2 { bad = 1 }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= worst)) worst = d; ++n }
    END { if (!bad && n > 0) print worst + 0 }'
}
# compare NAME RUN REFERENCE AIM
compare() {
  local difference
  difference=$(loss_difference "$3" "$2")
  if [ -z "$difference" ]; then
    check "$1" fail 'did not run to its end, see its log' "losses within $4"
  else
    check "$1" "$(at_least "$4" "$difference" && echo pass || echo fail)" "losses within $(awk -v a="$difference" 'BEGIN { printf "%.1e", a }')" "$4"
  fi
}
part_parity() {
  find_programs
  local place=$work/parity device=cuda steps=12 layout name
  [ "$dry" = no ] || device=cpu steps=4
  rm -rf "$place"
  mkdir -p "$place"
  cd "$place"
  awk 'BEGIN { for (i = 1; i <= 3000; ++i) printf "Ship %d has three banks of %d oars, and all of them pull together.\n", i, i * i % 31 }' > text.txt
  "$trireme" data build --tokenizer bytes --output data text.txt
  # Grouped keys, sizes that fill no tile. epsilon: Adam must not turn the rounding of a vanishing gradient into a full step.
  cat > run.yaml <<'YAML'
model: {architecture: llama, layers: 4, hidden_size: 96, heads: 8, kv_heads: 2, head_size: 12, ffn_size: 200, vocab_size: 259}
training: {steps: 12, sequence_length: 65, micro_batch_size: 2, global_batch_size: 16, optimizer: {learning_rate: 1.0e-3, epsilon: 1.0e-5}}
data: {train: [data]}
YAML
  sed 's/llama/gpt2/; s/kv_heads: 2/kv_heads: 8/' run.yaml > gpt2.yaml
  sed 's/head_size: 12/head_size: 32/' run.yaml > flash.yaml  # attention on tensor cores
  train() {
    limited 90 "$trireme" train "$1" --set "run.directory=$2" --set "training.steps=$steps" "${@:3}" > "$2.log" 2>&1 || tail -n 5 "$2.log"
    grep '^+ ' "$2.log" || true
  }
  sets() { local assignment; for assignment in "$@"; do printf -- '--set\n%s\n' "$assignment"; done; }

  for model in run gpt2 flash; do
    train $model.yaml cpu-$model-fp32 --set run.device=cpu
    train $model.yaml one-$model-fp32 --set run.device=$device
    # fp32: sums of a few hundred terms in another order, 1e-7 each, over a dozen steps. bf16: each activation may round to its neighbour, 4e-3 apart, in
    # fp16 an eighth of that; its loss scale is too small for an overflow, which another order of sums may just not have.
    name=${model/run/llama}
    compare "$name: GPU against CPU, fp32" one-$model-fp32 cpu-$model-fp32 1e-4
    for precision in 'bf16 5e-3' 'fp16 7e-4 training.loss_scale.initial=1024'; do
      read -r precision apart more <<< "$precision"
      mapfile -t arguments < <(sets "training.precision=$precision" $more)
      train $model.yaml cpu-$model-$precision --set run.device=cpu "${arguments[@]}"
      train $model.yaml one-$model-$precision --set "run.device=$device" "${arguments[@]}"
      compare "$name: GPU against CPU, $precision" one-$model-$precision cpu-$model-$precision "$apart"
    done
  done
  train run.yaml again-run-bf16 --set run.device=$device --set training.precision=bf16
  compare 'a rerun, bf16' again-run-bf16 one-run-bf16 0

  local layouts=('2 1 1 0 false' '1 2 1 0 false' '1 1 2 1 false' '1 1 4 3 false' '2 2 2 3 true' '4 2 1 0 true' '2 1 4 2 true' '1 4 2 3 false')
  [ "$dry" = no ] || layouts=('2 1 1 0 false' '1 1 2 3 false')
  for layout in "${layouts[@]}"; do
    local t p d z s
    read -r t p d z s <<< "$layout"
    name=tp${t}pp${p}dp${d}z$z
    mapfile -t arguments < <(sets "run.device=$device" run.ranks_per_gpu=8 "parallel.tensor=$t" "parallel.pipeline=$p" "parallel.data=$d" \
      "parallel.zero_stage=$z" "parallel.sequence_parallel=$s")
    train run.yaml "$name" "${arguments[@]}"
    compare "layout $name against one rank, fp32" "$name" one-run-fp32 1e-4
  done
  train run.yaml tp2pp2dp2z3-bf16 "${arguments[@]}" --set parallel.tensor=2 --set parallel.pipeline=2 --set parallel.data=2 --set parallel.zero_stage=3 \
    --set training.precision=bf16
  compare 'layout tp2pp2dp2z3 against one rank, bf16' tp2pp2dp2z3-bf16 one-run-bf16 5e-3
}

part_sanitizer() {
  find_programs
  local sanitizer status summary tool filter limit
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  if [ ! -x "$tests" ] || [ -z "$sanitizer" ]; then
    check compute-sanitizer skip "$([ -x "$tests" ] && echo 'compute-sanitizer is not installed' || echo 'there is no test_kernels_gpu here')"
    return
  fi
  # racecheck is many times slower: every kernel once, at the sizes of the first tests.
  for tool in 'memcheck;~[slow];200' 'racecheck;*engines agree;160'; do
    IFS=';' read -r tool filter limit <<< "$tool"
    status=0
    limited "$limit" "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 "$tests" "$filter" --warn NoTests > "$logs/$tool.log" 2>&1 || status=$?
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$tool.log" | tail -n 1 | sed 's/=* *//')
    case $status in
      0) check "$tool" pass "${summary:-no error}" 'no error' ;;
      124 | 137)
        summary="stopped at its limit of $limit s"
        if grep -q '========= \(Invalid\|Error\|Race\)' "$logs/$tool.log"; then
          check "$tool" fail "$summary, errors before" 'no error'
        else
          check "$tool" info "$summary, no error before: no proof" 'no error'
        fi
        ;;
      *) check "$tool" fail "${summary:-code $status}" 'no error' ;;
    esac
  done
}

# ---- speed ----
part_bench() {
  find_programs
  local file=$logs/kernels.json arguments=(--set kernels.attention=builtin) row worst key
  if [ "$dry" = no ]; then
    arguments=("$config" "${arguments[@]}" --device cuda --tokens 16384)
  else
    arguments+=(--device cpu --seconds 0.002 --tokens 64 --square 64 --sequences '64,4096' --head-sizes '16,128' --working-set 8)
    for row in hidden_size=64 heads=4 kv_heads=4 ffn_size=96 vocab_size=300; do arguments+=(--set "model.$row"); done
  fi
  limited 170 "$trireme" bench kernels "${arguments[@]}" --json > "$file"
  rows_of "$file" gemm | markdown
  rows_of "$file" attention | markdown
  rows_of "$file" bandwidth | markdown
  check 'fastest matrix product' info "$(short "$(value_of gemm_ceiling_tflops < "$file")") TFLOP/s"
  check 'copy on the device' info "$(short "$(value_of copy_gb_per_second < "$file")") GB/s"
  for row in '4096 265' '16384 300'; do
    key=$(rows_of "$file" attention | grep '"head_size": *128,"sequence": *'"${row% *}," | value_of forward_backward_tflops || true)
    [ -z "$key" ] || check_at_least "built-in attention, forward and backward, head size 128, sequence ${row% *}" "$key" "${row#* }" TFLOP/s
  done
  while read -r row; do
    check_at_least "$(value_of kernel <<< "$row"), share of copy bandwidth" "$(value_of share_of_copy <<< "$row")" 0.85 ''
  done < <(rows_of "$file" bandwidth)
  if have_torch; then
    limited 120 python3 "$here/bench/pytorch_products.py" --like "$file" > "$logs/products.json"
    rows_of "$logs/products.json" gemm | markdown
    worst=$(value_of worst_ratio < "$logs/products.json")
    check_at_least 'slowest matrix product, against cuBLAS through PyTorch' "$worst" 0.9 x
  else
    check 'matrix products against cuBLAS' skip 'no PyTorch to call it through'
  fi
}

# The configuration's micro-batch, halved until a step fits: --set arguments, one a line.
fitting_batch() {
  local micro
  [ "$dry" = no ] || return 0
  micro=$("$trireme" config show "$config" | sed -n 's/^ *micro_batch_size: *//p')
  for (( ; micro >= 1; micro /= 2)); do
    if limited 90 "$trireme" bench step "$config" --device cuda --steps 1 --warmup 1 --seconds 0.05 --set "training.micro_batch_size=$micro" \
      --set "training.global_batch_size=$((4 * micro))" > "$logs/fit.log" 2>&1; then
      printf -- '--set\ntraining.micro_batch_size=%s\n--set\ntraining.global_batch_size=%s\n' "$micro" "$((4 * micro))"
      return 0
    fi
    cat "$logs/fit.log" >&2
    grep -q 'bytes on the GPU' "$logs/fit.log" || return 1
  done
  return 1
}
part_step() {
  find_programs
  local arguments=("$config" --device cuda) file=$logs/step/round-1-trireme.json batch
  rm -rf "$logs/step"
  mkdir -p "$logs/step"
  if [ "$dry" = yes ]; then
    arguments=("$root/configs/quickstart.yaml" --device cpu --seconds 0.01)
    for batch in parallel.{tensor,pipeline,data}=1 parallel.zero_stage=0 parallel.sequence_parallel=false training.global_batch_size=4; do
      arguments+=(--set "$batch")
    done
  fi
  batch=$(fitting_batch)
  [ -z "$batch" ] || mapfile -t -O ${#arguments[@]} arguments <<< "$batch"
  if have_torch && limited 500 "$here/bench/against_pytorch.sh" --trireme "$trireme" --output "$logs/step" --rounds 3 --steps 6 "${arguments[@]}"; then
    check_at_least "tokens a second, against PyTorch $(value_of pytorch < "$logs/step/summary.json") ($(value_of variant < "$logs/step/summary.json"))" \
      "$(value_of ratio < "$logs/step/summary.json")" 1.15 x
  else
    if have_torch; then check 'training step against PyTorch' fail 'see step.log'; else check 'training step against PyTorch' skip 'no PyTorch'; fi
    [ -s "$file" ] || limited 200 "$trireme" bench step "${arguments[@]}" --steps 8 --json > "$file"
  fi
  local rate
  rate=$(short "$(sed -n 's/.*"tokens_per_second":{"median":\([^,]*\).*/\1/p' "$file")")
  check 'training step' info "$rate tokens/s, $(short "$(value_of model_tflops < "$file")") TFLOP/s, mfu $(value_of mfu < "$file"); \
micro-batch $(value_of micro_batch_size < "$file")"
  check_at_least 'training step, share of the ceiling of its matrix products' "$(value_of share_of_gemm_ceiling < "$file")" 0.6 ''
}

# ---- run ----
commit=${commit:-$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)}
[ -z "$(git -C "$root" status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=' with changes'
declare -A limits=([tools]=30 [build]=540 [kernels]=240 [parity]=270 [sanitizer]=300 [bench]=300 [step]=540)
run_part() {
  part=$1
  part_end=$((SECONDS + limits[$part]))
  rm -f "$logs/$part.results"
  echo "gpu-check: $part ..." >&2
  local began=$SECONDS status=0
  set +e
  (
    set -e
    "part_$part"
  ) > "$logs/$part.log" 2>&1
  status=$?
  set -e
  if [ "$status" -ne 0 ]; then
    local last
    last=$(tail -n 1 "$logs/$part.log" | tr '\t|' '  ' | cut -c 1-160)
    check "$part" fail "ended with code $status after $((SECONDS - began)) s; the end of $part.log: $last"
  fi
  echo "gpu-check: $part: $((SECONDS - began)) s$([ "$status" -eq 0 ] || echo ', FAILED')" >&2
}
for part in "${parts[@]}"; do
  needed=$([ "$part" = tools ] && echo yes || echo no)
  # A build made before is good enough for the parts after it.
  [ "$part" = build ] && ! grep -qs '	pass	' "$logs/build.results" && needed=yes
  if [ "$needed" = yes ] || wants "$part"; then run_part "$part"; fi
done

results=$(for part in "${parts[@]}"; do cat "$logs/$part.results" 2>/dev/null || true; done)
if [ -z "$report" ]; then
  slug() { tr '[:upper:] ' '[:lower:]-' <<< "$1" | tr -cd 'a-z0-9.\n-'; }
  model=$(basename "$config" .yaml)
  report=bench/${model%-h200}_$(slug "${gpu_name#NVIDIA }")_$(date -u +%Y-%m-%d).md
  [ "$dry" = no ] && report=$root/$report || report=$work/$report
fi
mkdir -p "$(dirname "$report")"
{
  echo "# $gpu_name, $(date -u +%Y-%m-%d)"
  echo
  echo "Commit $commit. Driver $gpu_driver, CUDA $(version_of nvcc --version). Made by \`scripts/gpu-check.sh\`: matrix products, attention and kernels by"
  echo "\`trireme bench kernels\`, the step by \`trireme bench step\`, PyTorch by \`scripts/bench/against_pytorch.sh\`. The commands as they ran:"
  echo
  echo '```'
  grep -h '^+ ' "$logs"/{build,kernels,parity,sanitizer,bench,step}.log 2>/dev/null | cut -c 3- | sed "s|$logs|LOGS|g; s|$work|WORK|g; s|$root/||g" |
    awk '!seen[$0]++' || true
  echo '```'
  echo
  echo '| check | result | figure | aim |'
  echo '|---|---|---|---|'
  awk -F '\t' '{ printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4 }' <<< "$results"
  for table in gemm attention bandwidth; do
    [ -s "$logs/kernels.json" ] || continue
    printf '\n## %s\n\n' "$table"
    rows_of "$logs/kernels.json" "$table" | markdown
  done
  if [ -s "$logs/products.json" ]; then
    printf '\n## matrix products of cuBLAS through PyTorch; ratio: trireme over it\n\n'
    rows_of "$logs/products.json" gemm | markdown
  fi
  for file in "$logs"/step/*.json; do
    [ -s "$file" ] || continue
    printf '\n## %s\n\n```\n' "$(basename "$file" .json)"
    cat "$file"
    printf '```\n'
  done
} > "$report"

echo
awk -F '\t' '{ printf "%-4s  %-84s %s%s\n", $2, $1, $3, $4 == "" ? "" : "   [" $4 "]" }' <<< "$results"
echo
echo "gpu-check: $((SECONDS - started)) s; logs in $logs; report: $report"
! grep -q '	fail	' <<< "$results"
