# shellcheck shell=bash
# The samples of nvidia-smi and the report. Sourced by gpu-check.sh.

# Seconds, GPU, SM and memory clock in MHz, W, degrees Celsius, bits of the throttle reasons, % busy, MiB: one line a second and GPU.
# NVIDIA calls the reasons "event reasons" from driver 535 on.
start_sampler() {
  local query=index,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,utilization.gpu,memory.used parent=$$ line
  [ "$mode" = run ] || return 0
  nvidia-smi --query-gpu="$query" --format=csv,noheader,nounits >/dev/null 2>&1 || query=${query/event/throttle}
  nvidia-smi --query-gpu="$query" --format=csv,noheader,nounits -l 1 2>/dev/null | while read -r line; do
    kill -0 "$parent" 2>/dev/null || exit 0
    printf '%s, %s\n' "$EPOCHSECONDS" "$line"
  done >> "$output/samples.csv" &
  sampler=$!
}
stop_sampler() { [ -z "${sampler:-}" ] || kill "$sampler" 2>/dev/null || true; }  # nvidia-smi ends at its next line

# The reasons for lower clocks in hexadecimal values, one a line; bits as in NVML's nvmlClocksEventReason constants, without "idle" and "requested".
reasons_of() {
  local value bits=0 names='' bit
  while read -r value; do [[ $value =~ ^0x[0-9a-fA-F]+$ ]] && bits=$((bits | value)); done
  for bit in 4:power\ cap 8:hardware\ slowdown 16:synchronised\ boost 32:thermal\ slowdown 64:hardware\ thermal\ slowdown 128:power\ brake; do
    ((bits & ${bit%%:*})) && names+="${bit#*:}, "
  done
  echo "${names:+${names%, }}"
}
# samples_between FIRST LAST: rows of the report's table, one for each GPU that was busy between these seconds.
samples_between() {
  local index reasons
  [ -s "$output/samples.csv" ] || return 0
  for index in $(cut -d, -f2 "$output/samples.csv" | sort -un); do
    reasons=$(awk -F ', *' -v a="$1" -v b="$2" -v i="$((index))" '$1 >= a && $1 <= b && $2 == i { print $7 }' "$output/samples.csv" | sort -u | reasons_of)
    awk -F ', *' -v a="$1" -v b="$2" -v i="$((index))" -v name="$3" -v reasons="${reasons:-none}" '
      $1 < a || $1 > b || $2 != i || $8 + 0 < 10 { next }
      { if (n == 0 || $3 < low) low = $3; if ($3 > high) high = $3; if ($5 > power) power = $5; if ($6 > heat) heat = $6; if ($9 > memory) memory = $9; ++n }
      END { if (n) printf "| %s | %s | %s | %s-%s MHz | %s W | %s °C | %s MiB | %s |\n", name, i, n, low, high, power, heat, memory, reasons }' "$output/samples.csv"
  done
}

# field NAME: of lines written by `record`.
field() { sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\)\"\{0,1\}.*/\1/p"; }
ends() { grep '"event": "end"' "$results" 2>/dev/null || true; }
has_failed() { grep -qs '"result": "fail"' "$results"; }
counts() {
  awk -F '"result": "' 'NF > 1 && !/"event"/ { split($2, part, "\""); ++n[part[1]] }
    END { printf "%d passed, %d failed, %d below the forecast, %d skipped", n["pass"], n["fail"], n["below"], n["skip"] }' "$results"
}
result_table() {
  awk -v only="$1" '
    function text(key,   at, rest) {
      at = index($0, "\"" key "\": \""); if (!at) return ""
      rest = substr($0, at + length(key) + 5); return substr(rest, 1, index(rest, "\"") - 1)
    }
    !/"check"/ { next }
    { result = text("result"); if ((only == "fail") != (result == "fail")) next
      if (only != "fail" && text("kind") == "case" && result != "skip") next
      gsub(/\|/, "/")
      printf "| %s | %s | %s | %s | %s |\n", text("part"), text("check"), result, text("figure"), text("aim") }' "$results"
}
write_report() {
  local line state=${1:-}
  [ "$mode" != dry ] && [ -e "$results" ] || return 0
  mkdir -p "$(dirname "$report")"
  {
    echo "# $gpu_name, $(date -u +%FT%TZ)"
    echo
    [ "$mode" = run ] || echo '**A rehearsal on the CPU at toy sizes: its figures mean nothing.**'
    echo "Commit $commit. $gpu_count GPU(s), driver $gpu_driver. $(counts). ${state:+**$state.** }Made by \`scripts/gpu-check.sh\`."
    echo
    for line in fail others; do
      [ $line != fail ] || has_failed || continue
      [ $line = fail ] && printf '## Failed\n\n' || printf '## Checks\n\n'
      printf '| part | check | result | figure | aim |\n|---|---|---|---|---|\n'
      result_table $line
      echo
    done
    printf '## Parts\n\n| part | result | seconds | reason |\n|---|---|---|---|\n'
    ends | while read -r line; do
      echo "| $(field part <<< "$line") | $(field result <<< "$line") | $(field seconds <<< "$line") | $(sed -n 's/.*"reason": "\([^"]*\)".*/\1/p' <<< "$line") |"
    done
    printf '\n## Clocks, power, temperature\n\nSamples of each second in which a GPU was at least 10 %% busy.\n\n'
    printf '| part | GPU | samples | SM clock | highest power | hottest | memory | reasons for lower clocks |\n|---|---|---|---|---|---|---|---|\n'
    ends | while read -r line; do samples_between "$(field began <<< "$line")" "$(field ended <<< "$line")" "$(field part <<< "$line")"; done
    for line in gemm attention bandwidth; do
      [ -s "$output/kernels.json" ] || continue
      printf '\n## %s\n\n' $line
      rows_of "$output/kernels.json" $line | markdown
    done
    if [ -s "$output/comm.json" ]; then
      printf '\n## Collectives\n\n'
      rows_of "$output/comm.json" comm | markdown
    fi
    if [ -s "$output/products.json" ]; then
      printf '\n## Matrix products of cuBLAS through PyTorch; ratio: Trireme over it\n\n'
      rows_of "$output/products.json" gemm | markdown
    fi
    printf '\n## Commands\n\n```\n'
    cat "$output"/logs/*.log 2>/dev/null | grep -h '^+ ' | cut -c 3- | sed "s|$output|OUTPUT|g; s|$work|WORK|g; s|$root/||g" | awk '!seen[$0]++' || true
    printf '```\n'
  } > "$report.new"
  mv "$report.new" "$report"
}
