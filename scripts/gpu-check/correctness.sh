# shellcheck shell=bash
# Parts smoke, kernels, sanitizer and parity: the GPU computes what the CPU and the reference kernels compute. Sourced by gpu-check.sh.

part_smoke() {
  local precision
  enter_scratch
  # fp32: sums of a few hundred terms in another order, 1e-7 each. bf16: each activation may round to its neighbour, 4e-3 apart.
  for precision in 'fp32 1e-4' 'bf16 5e-3'; do
    train flash.yaml "smoke-cpu-${precision% *}" run.device=cpu training.steps=5 "training.precision=${precision% *}"
    train flash.yaml "smoke-gpu-${precision% *}" "run.device=$device" training.steps=5 "training.precision=${precision% *}"
    compare "five steps, GPU against CPU, ${precision% *}" "smoke-gpu-${precision% *}" "smoke-cpu-${precision% *}" "${precision#* }"
  done
}

part_kernels() {
  build_tests
  # The reference runs on the CPU beside: half of the cores are for its threads.
  local jobs=$(($(nproc) / 2))
  cases 'kernels against the reference on the device' "$kernel_tests" '~[slow]~[large]' $((jobs < 1 ? 1 : jobs > 8 ? 8 : jobs)) 120
}

part_sanitizer() {
  local sanitizer tool share
  sanitizer=$(tool compute-sanitizer)
  if [ -z "$sanitizer" ]; then
    check compute-sanitizer skip 'compute-sanitizer is not installed'
    return
  fi
  build_tests
  # Each tool has its share of the time that is left; racecheck is many times slower than the others.
  local end=$part_end
  for tool in 'memcheck 3' 'synccheck 3' 'racecheck 2' 'initcheck 1'; do
    read -r tool share <<< "$tool"
    part_end=$((EPOCHSECONDS + (end - EPOCHSECONDS) / share))
    cases "$tool" "$kernel_tests" '*engines agree*' 4 300 "$sanitizer" --tool $tool --target-processes all --error-exitcode 9
  done
}

part_parity() {
  enter_scratch
  local steps=12 model precision apart more layout name t p d z s text
  local models=(llama gpt2 flash) layouts=('2 1 1 0 false' '1 2 1 0 false' '1 1 2 1 false' '1 1 4 3 false' '2 2 2 3 true' '4 2 1 0 false' '2 1 4 2 true' '1 4 2 3 false')
  [ "$mode" != rehearse ] || { steps=4; models=(llama); layouts=('2 1 1 0 false' '1 1 2 3 false'); }
  for model in "${models[@]}"; do
    # fp16 rounds an eighth as far as bf16; its loss scale is too small for an overflow, which another order of sums may just not have.
    for precision in 'fp32 1e-4' 'bf16 5e-3' 'fp16 7e-4 training.loss_scale.initial=1024'; do
      read -r precision apart more <<< "$precision"
      # shellcheck disable=SC2086
      train $model.yaml "cpu-$model-$precision" run.device=cpu training.steps=$steps "training.precision=$precision" $more
      # shellcheck disable=SC2086
      train $model.yaml "gpu-$model-$precision" "run.device=$device" training.steps=$steps "training.precision=$precision" $more
      compare "$model: GPU against CPU, $precision" "gpu-$model-$precision" "cpu-$model-$precision" "$apart"
    done
  done
  train llama.yaml again-bf16 "run.device=$device" training.steps=$steps training.precision=bf16
  compare 'a rerun, bf16' again-bf16 gpu-llama-bf16 0

  for layout in "${layouts[@]}"; do
    read -r t p d z s <<< "$layout"
    name=tp${t}pp${p}dp${d}z$z
    train llama.yaml "$name" "run.device=$device" run.ranks_per_gpu=8 training.steps=$steps "parallel.tensor=$t" "parallel.pipeline=$p" "parallel.data=$d" \
      "parallel.zero_stage=$z" "parallel.sequence_parallel=$s"
    compare "ranks that share a GPU, $name against one rank, fp32" "$name" gpu-llama-fp32 1e-4
  done

  # A run that stops, continues on the CPU and then on the GPU, against one on the GPU alone.
  for text in "$device 1" 'cpu 2' "$device 3"; do
    limited 60 "$trireme" train llama.yaml --set run.directory=resumed --set "run.device=${text% *}" --set "training.steps=$steps" \
      --max-steps $((steps * ${text#* } / 3)) || break
  done
  compare 'resumed on the CPU and again on the GPU' resumed gpu-llama-fp32 1e-4
  for name in "$device" cpu; do
    into "eval-$name.json" limited 60 "$trireme" eval held-out.yaml --checkpoint resumed --set "run.device=$name" --json || true
  done
  into text-default limited 60 "$trireme" generate --checkpoint resumed --prompt Ship --max-tokens 20 --temperature 0 || true
  into text-cpu limited 60 env CUDA_VISIBLE_DEVICES= "$trireme" generate --checkpoint resumed --prompt Ship --max-tokens 20 --temperature 0 || true
  [ "$mode" != dry ] || return 0
  check 'evaluation, GPU against CPU' "$(close "$(loss_of "eval-$device.json")" "$(loss_of eval-cpu.json)" 1e-4)" \
    "losses $(loss_of "eval-$device.json") and $(loss_of eval-cpu.json)" 'within 1e-4'
  text=$(wc -c < text-default)
  check 'generation, GPU against CPU' "$([ "$text" -gt 0 ] && cmp -s text-default text-cpu && echo pass || echo fail)" "$text bytes" 'the same text'
}
loss_of() { value_of validation_loss < "$1"; }
# pass where two numbers agree to a relative tolerance, else fail
close() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; print a != "" && b != "" && d <= t * (b < 0 ? -b : b) ? "pass" : "fail" }'; }
