# shellcheck shell=bash
# Part ranks: NCCL between GPUs, captured graphs, ranks that die or stop. Sourced by gpu-check.sh.

# The process of rank RANK of the run directory RUN.
process_of_rank() {
  local process
  for process in /proc/[0-9]*; do
    tr '\0' '\n' < "$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" || continue
    tr '\0' ' ' < "$process/cmdline" 2>/dev/null | grep -q "run.directory=$2 " || continue
    echo "${process#/proc/}"
    return
  done
}
# disturb SIGNAL NAME SECONDS KEY=VALUE...: sends the signal to rank 1 of an endless run. The run must end with code 70 within SECONDS and name rank 1.
disturb() {
  local signal=$1 name=$2 seconds=$3 run=disturbed-$1 pid=0 status=0 sent=0 arguments
  shift 3
  mapfile -t arguments < <(sets "run.directory=$run" "run.device=$device" training.steps=1000000 checkpoint.every=0 resilience.hang_seconds=10 "$@")
  if [ "$mode" = dry ]; then
    limited 0 "$trireme" train llama.yaml "${arguments[@]}"
    echo "   would send SIG$signal to rank 1" >&3
    return
  fi
  rm -rf "$run"
  limited $((60 + seconds)) "$trireme" train llama.yaml "${arguments[@]}" > "$run.log" 2>&1 &
  local job=$!
  while kill -0 $job 2>/dev/null; do
    # Twenty steps give the watchdog a median; the second lets the hub receive a report of them.
    if [ $sent -eq 0 ] && [ "$(losses_of "$run" | wc -l)" -ge 20 ]; then
      sleep 1
      pid=$(process_of_rank 1 "$run")
      [ -n "$pid" ] || break
      kill -"$signal" "$pid"
      sent=$EPOCHSECONDS
    fi
    sleep 0.2
  done
  wait $job || status=$?
  cat "$run.log"
  if [ $sent -eq 0 ]; then
    check "$name" fail "rank 1 did not run: code $status"
  else
    check "$name" "$([ $status -eq 70 ] && grep -q 'rank 1 (' "$run.log" && [ $((EPOCHSECONDS - sent)) -le "$seconds" ] && echo pass || echo fail)" \
      "code $status after $((EPOCHSECONDS - sent)) s: $(grep -m 1 'rank 1 (' "$run.log" || echo 'rank 1 is not named')" "code 70 within $seconds s, naming rank 1"
  fi
  [ "$pid" = 0 ] || kill -KILL "$pid" 2>/dev/null || true  # a stopped process takes no other signal
}

part_ranks() {
  local ranks=2 key filter='~[slow]~[gpus2]~[gpus4]~[gpus8]' on=() apart pair
  enter_scratch
  # A captured step is the queued step, on one GPU with attention on tensor cores.
  for key in false true; do
    train flash.yaml "graph-$key" "run.device=$device" training.precision=bf16 "kernels.cuda_graph=$key"
  done
  compare 'graph on = off, one GPU, bf16' graph-true graph-false 0
  if [ "$gpu_count" -lt 2 ] && [ "$mode" != rehearse ]; then
    for key in 'bench comm' 'training over NCCL' 'overlap on = off' 'captured collectives'; do check "$key" skip 'needs two GPUs; there is one'; done
    [ -z "$nccl" ] || check NCCL info 'installed, but not tried'
    on=(run.ranks_per_gpu=2)  # dying and hung ranks are still tried, with communication through host memory
  else
    [ "$mode" = rehearse ] || for ((ranks = 2; ranks * 2 <= gpu_count && ranks < 8; ranks *= 2)); do :; done
    key=("$trireme" bench comm --device "$device" --ranks $ranks --json)
    [ "$mode" != rehearse ] || key+=(--sizes 4096 --seconds 0.01)
    into "$output/comm.json" limited 120 "${key[@]}" || check 'bench comm' fail "code $?; see ranks.log"
    [ "$mode" = dry ] || [ ! -s "$output/comm.json" ] || check "all_reduce over $ranks GPUs, largest buffer" info \
      "$(short "$(rows_of "$output/comm.json" comm | grep '"all_reduce"' | tail -n 1 | value_of bus_gb_per_second)") GB/s on the bus"
    [ "$mode" = rehearse ] || case $ranks in 2) filter='~[slow]~[gpus4]~[gpus8]' ;; 4) filter='~[slow]~[gpus8]' ;; *) filter='~[slow]' ;; esac
    on=("parallel.data=$ranks" parallel.zero_stage=3 training.precision=bf16)
    train flash.yaml nccl-reference "run.device=$device" training.precision=bf16
    for pair in overlap=true overlap=false; do train flash.yaml "nccl-$pair" "run.device=$device" "${on[@]}" "parallel.$pair"; done
    train flash.yaml nccl-graph "run.device=$device" "${on[@]}" kernels.cuda_graph=true
    compare "$ranks GPUs over NCCL against one, ZeRO-3, bf16" nccl-overlap=true nccl-reference 5e-3
    compare 'overlap on = off' nccl-overlap=true nccl-overlap=false 0
    compare "graph on = off, $ranks GPUs" nccl-graph nccl-overlap=true 0
    on=()
  fi
  build_tests
  cases "communicators and training on $gpu_count GPU(s)" "$cuda_tests" "$filter" 1 240
  disturb KILL 'a killed rank' 30 parallel.data=2 "${on[@]}"
  disturb STOP 'a stopped peer' 60 parallel.data=2 "${on[@]}"
}
