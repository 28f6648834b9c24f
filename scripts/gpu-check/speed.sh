# shellcheck shell=bash
# Parts step, bench, pytorch and profile: figures. Sourced by gpu-check.sh.
# Forecasts are figures of bench/llama-1.3b_nvidia-h100_2026-11-26.md, a little lower. A figure below its forecast is reported, and is no failure.

# The configuration's micro-batch, halved until a step fits: sets micro.
fit_batch() {
  micro=4
  [ "$mode" = run ] || return 0
  micro=$("$trireme" config show "$config" | sed -n 's/^ *micro_batch_size: *//p')
  for (( ; micro >= 1; micro /= 2)); do
    if limited 90 "$trireme" bench step "$config" --device cuda --steps 1 --warmup 1 --seconds 0.05 --set "training.micro_batch_size=$micro" \
      --set "training.global_batch_size=$((4 * micro))" > "$output/logs/fit.log" 2>&1; then
      return 0
    fi
    cat "$output/logs/fit.log" >&2
    grep -q 'bytes on the GPU' "$output/logs/fit.log" || return 1
  done
  return 1
}
# Arguments of `bench step` for the step that is measured, in `step`.
step_arguments() {
  local key
  fit_batch
  step=("$config" --device cuda --set "training.micro_batch_size=$micro" --set "training.global_batch_size=$((4 * micro))")
  if [ "$mode" = rehearse ]; then
    step=("$root/configs/quickstart.yaml" --device cpu --seconds 0.01)
    for key in parallel.{tensor,pipeline,data}=1 parallel.zero_stage=0 parallel.sequence_parallel=false training.global_batch_size=4; do step+=(--set "$key"); done
  fi
}
median_rate() { sed -n 's/.*"tokens_per_second":{"median":\([^,]*\).*/\1/p' "$1"; }
losses_of_step() { sed -n 's/.*"loss":\({[^}]*}\).*/\1/p' "$1"; }

part_step() {
  local graph file off on
  step_arguments
  # A graph is captured in the third step, so that four steps of warm-up leave only launches of it.
  for graph in false true; do
    file=$output/step-graph-$graph.json
    into "$file" limited 150 "$trireme" bench step "${step[@]}" --steps 8 --warmup 4 --set kernels.cuda_graph=$graph --json || true  # then there is no figure
    [ "$mode" = dry ] || forecast "training step, graph $graph" "$(median_rate "$file")" 58000 tokens/s "$expected_rate"
  done
  [ "$mode" != dry ] || return 0
  off=$output/step-graph-false.json on=$output/step-graph-true.json
  check 'training step: model FLOPs' info "$(short "$(value_of model_tflops < "$off")") TFLOP/s, mfu $(value_of mfu < "$off"), micro-batch $(value_of micro_batch_size < "$off")" \
    "measured: mfu 0.52 on an H100"
  check 'training step: share of the ceiling of its matrix products' info "$(short "$(value_of share_of_gemm_ceiling < "$off")")"
  check 'training step: graph over no graph' info "$(awk -v a="$(median_rate "$on")" -v b="$(median_rate "$off")" 'BEGIN { printf "%.3f x", (b > 0 ? a / b : 0) }')"
  # The graph queues the same kernels in the same order on each stream, so that every bit is equal.
  check 'losses with a graph and without' "$([ -n "$(losses_of_step "$off")" ] && [ "$(losses_of_step "$off")" = "$(losses_of_step "$on")" ] && echo pass || echo fail)" \
    "$(losses_of_step "$off" | tr -d '{}"') without, $(losses_of_step "$on" | tr -d '{}"') with" 'equal'
}

# bench_cudnn BUILTIN: attention by cuDNN, whose results the program compares with its own kernels', beside their times in that file; then a step.
bench_cudnn() {
  local file=$output/kernels-cudnn.json step_file=$output/step-cudnn.json row pass key shape ratios='' of_builtin
  if [ "$mode" = rehearse ]; then
    check 'cuDNN attention' skip 'a rehearsal has no GPU'
    return 0
  elif [ -z "$cudnn" ]; then
    check 'cuDNN attention' skip 'libcudnn.so.9 was not found'
    return 0
  elif [ "$mode" = run ] && ! grep -q ', cuDNN [0-9]' "$output/version.txt"; then
    check 'cuDNN attention' skip 'this program was built without the headers of cuDNN'
    return 0
  fi
  into "$file" limited 170 "$trireme" bench kernels "$config" --device cuda --tokens 16384 --only attention --set kernels.attention=cudnn --json \
    2> "$output/logs/cudnn.log" || true
  if [ "$mode" = run ] && grep -q 'libcudnn.so.9: version .* is needed' "$output/logs/cudnn.log"; then
    check 'cuDNN attention' skip "$(grep -m 1 'is needed' "$output/logs/cudnn.log")"
    return 0
  fi
  step_arguments
  into "$step_file" limited 150 "$trireme" bench step "${step[@]}" --steps 8 --warmup 4 --set kernels.attention=cudnn --json || true
  [ "$mode" != dry ] || return 0
  for key in "$file" "$step_file"; do
    shape=$([ "$key" = "$file" ] && echo 'cuDNN attention agrees with the built-in kernels' || echo 'cuDNN attention agrees in a training step')
    row=$(rows_of "$key" builtin)
    if [ -z "$(rows_of "$key" cudnn)$row" ]; then
      check "$shape" fail 'no figure; see bench.log'
    else
      check "$shape" "$(grep -q '"mismatch": *true' <<< "$row" && echo fail || echo pass)" \
        "$(rows_of "$key" cudnn | grep -c .) shapes by cuDNN, largest difference $(short "$(rows_of "$key" cudnn | value_of difference | sort -g | tail -n 1)") of what is allowed${row:+; built-in: $(head -n 1 <<< "$row")}" 'no mismatch'
    fi
  done
  while read -r row; do
    shape=$(sed -n 's/.*\("head_size": *[0-9]*, *"sequence": *[0-9]*,\).*/\1/p' <<< "$row")
    of_builtin=$(rows_of "$1" attention | grep -F "$shape" || true)
    ratios=''
    for pass in forward backward; do
      ratios+="${ratios:+, }$pass $(short "$(value_of "${pass}_tflops" <<< "$row")") TFLOP/s, $(awk -v a="$(value_of "${pass}_tflops" <<< "$row")" \
        -v b="$(value_of "${pass}_tflops" <<< "$of_builtin")" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }') of the built-in kernels"
    done
    check "cuDNN attention, $(tr -d '"' <<< "${shape%,}")" info "$ratios"
  done < <(rows_of "$file" attention)
  check 'training step: cuDNN attention over built-in' info \
    "$(awk -v a="$(median_rate "$step_file")" -v b="$(median_rate "$output/step-graph-false.json" 2>/dev/null)" 'BEGIN { printf "%.3f x", (b > 0 ? a / b : 0) }'), $(short "$(median_rate "$step_file")") tokens/s"
}

part_bench() {
  local file=$output/kernels.json arguments=(--set kernels.attention=builtin) row key
  if [ "$mode" = rehearse ]; then
    arguments+=(--device cpu --seconds 0.002 --tokens 64 --square 64 --sequences '64,4096' --head-sizes '16,128' --working-set 8)
    for row in hidden_size=64 heads=4 kv_heads=4 ffn_size=96 vocab_size=300; do arguments+=(--set "model.$row"); done
  else
    arguments=("$config" "${arguments[@]}" --device cuda --tokens 16384)
  fi
  into "$file" limited 170 "$trireme" bench kernels "${arguments[@]}" --json || true  # then there are no figures, but large shapes are still compared
  if [ "$mode" != dry ]; then
    forecast 'fastest matrix product' "$(value_of gemm_ceiling_tflops < "$file")" 650 TFLOP/s '693 TFLOP/s on an H100'
    check 'copy on the device' info "$(short "$(value_of copy_gb_per_second < "$file")") GB/s"
    for row in 'forward 400 433' 'backward 290 309'; do
      read -r key low range <<< "$row"
      forecast "built-in attention, $key, head size 128, sequence 4096" \
        "$(rows_of "$file" attention | grep '"head_size": *128,"sequence": *4096,' | value_of "${key}_tflops" || true)" "$low" TFLOP/s "$range TFLOP/s on an H100"
    done
    while read -r row; do
      key=$(value_of kernel <<< "$row")
      case $key in
        rope*) range='0.60 0.60-0.75' ;;
        embedding_backward) range='0.30 0.30-0.50' ;;
        *) range='0.75 0.75-0.93' ;;
      esac
      forecast "$key, share of copy bandwidth" "$(value_of share_of_copy <<< "$row")" "${range% *}" x "${range#* } on an H100"
    done < <(rows_of "$file" bandwidth)
  fi
  bench_cudnn "$file"
  build_tests
  cases 'large shapes against fp64 on the host' "$kernel_tests" '[large]' 1 300
}

part_pytorch() {
  if ! have_torch; then
    check PyTorch skip 'python3 has no torch that sees the GPU'
    return
  fi
  step_arguments
  if [ "$mode" = dry ] || [ -s "$output/kernels.json" ]; then
    into "$output/products.json" limited 120 python3 "$here/bench/pytorch_products.py" --like "$output/kernels.json" || true
    [ "$mode" = dry ] || forecast 'slowest matrix product, over cuBLAS through PyTorch' "$(value_of worst_ratio < "$output/products.json")" 0.9 x 'at least 0.9'
  fi
  limited 500 "$here/bench/against_pytorch.sh" --trireme "$trireme" --output "$output/pytorch" --rounds 3 --steps 6 "${step[@]}" || { check 'step against PyTorch' fail 'see pytorch.log'; return; }
  [ "$mode" = dry ] || forecast "tokens a second, over PyTorch $(value_of pytorch < "$output/pytorch/summary.json") ($(value_of variant < "$output/pytorch/summary.json"))" \
    "$(value_of ratio < "$output/pytorch/summary.json")" 1.15 x 'at least 1.15'
}

part_profile() {
  local nsys ncu
  nsys=$(tool nsys) ncu=$(tool ncu)
  [ -n "$nsys" ] || check nsys skip 'nsys is not installed'
  [ -n "$ncu" ] || check ncu skip 'ncu is not installed'
  [ -n "$nsys$ncu" ] || return 0
  step_arguments
  [ "$mode" = dry ] || mkdir -p "$output/profiles"
  if [ -n "$nsys" ]; then
    limited 150 "$nsys" profile --trace cuda,nvtx --sample none --force-overwrite true --output "$output/profiles/step" \
      "$trireme" bench step "${step[@]}" --steps 2 --warmup 2 --seconds 0.05 && check nsys info 'profiles/step.nsys-rep' || check nsys fail 'see profile.log'
  fi
  if [ -n "$ncu" ]; then
    # The counters of the attention and norm kernels; ncu replays each launch.
    limited 240 "$ncu" --set full --kernel-name 'regex:flash|hopper|norm' --launch-count 12 --force-overwrite --export "$output/profiles/kernels" \
      "$trireme" bench step "${step[@]}" --steps 1 --warmup 1 --seconds 0.05 && check ncu info 'profiles/kernels.ncu-rep' ||
      check ncu fail 'see profile.log; ERR_NVGPUCTRPERM there: the driver allows counters to root only'
  fi
}
