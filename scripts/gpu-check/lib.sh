# shellcheck shell=bash
# Shared by gpu-check.sh, its parts and cases.sh: results, limited commands, JSON, comparison of losses. Sourced; the caller sets
#   output, work, results  directories, and the file of results
#   part, part_end         name of the current part, and the second (EPOCHSECONDS) at which its time is over
#   mode                   run | dry (prints commands, runs and records nothing) | rehearse (CPUs at toy sizes)

# json_text TEXT: for a JSON string. Quotes, backslashes and control characters are replaced, so that lines can be read without a JSON parser.
json_text() { LC_ALL=C tr '"\\' "'/" <<< "$1" | LC_ALL=C tr -d '\n' | LC_ALL=C tr '\000-\037\177' ' ' | cut -c 1-300; }
record() { [ "$mode" = dry ] || printf '{"time": "%s", "part": "%s", %s}\n' "$(date -u +%FT%TZ)" "$part" "$1" >> "$results"; }
# check NAME pass|fail|info|below|skip FIGURE [AIM]: appends one result. fail: a wrong result. below: slower than the forecast, which is no error.
check() {
  if [ "$mode" = dry ]; then
    [ "$2" != skip ] || echo "   skipped: $1: $3"
    return 0
  fi
  record "\"check\": \"$(json_text "$1")\", \"result\": \"$2\", \"figure\": \"$(json_text "$3")\", \"aim\": \"$(json_text "${4:-}")\"${kind:+, \"kind\": \"$kind\"}"
}
# into FILE COMMAND...: its output goes to the file; in a dry run there is none.
into() { if [ "$mode" = dry ]; then "${@:2}"; else "${@:2}" > "$1"; fi; }

# limited SECONDS COMMAND...: runs it no longer than that and than the part has left. A signal to gpu-check.sh ends it (see stop_running).
limited() {
  local seconds=$1 left=$((part_end - EPOCHSECONDS)) status=0
  shift
  if [ "$mode" = dry ]; then
    echo "   would run: $*" >&3
    return
  fi
  ((seconds < left)) && left=$seconds
  ((left > 0)) || { echo "no time is left for: $*" >&2; return 124; }
  echo "+ $*" >&2
  timeout --kill-after=10 "$left" "$@" &
  echo $! > "$work/running"
  wait $! || status=$?
  rm -f "$work/running"
  return $status
}
limited_both() { limited "$@" 2>&1; }
# Ends what `limited` runs: timeout passes SIGTERM to its process group.
stop_running() {
  local pid tenth
  pid=$(cat "$work/running" 2>/dev/null) || return 0
  kill -TERM "$pid" 2>/dev/null || return 0
  for ((tenth = 0; tenth < 50; ++tenth)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL -- "-$pid" 2>/dev/null || true
}

# ---- figures ----
short() { awk -v a="$1" 'BEGIN { printf "%.4g", a }'; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 >= b + 0) }'; }
# forecast NAME FIGURE LEAST UNIT SOURCE: a speed beside its forecast.
forecast() {
  if [ -z "$2" ]; then
    check "$1" fail 'no figure; see the log' "forecast: $5"
  else
    local outcome=info  # of a rehearsal
    [ "$mode" != run ] || outcome=$(at_least "$2" "$3" && echo pass || echo below)
    check "$1" "$outcome" "$(short "$2") $4" "forecast: $5"
  fi
}
# The objects of the array NAME in a file that holds one JSON object, one a line; they are flat.
rows_of() { { tr -d '\n' < "$1"; echo; } | sed -n "s/.*\"$2\": *\[\([^]]*\)\].*/\1/p" | sed 's/}, *{/}\n{/g'; }
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

# ---- training runs ----
sets() { local assignment; for assignment in "$@"; do printf -- '--set\n%s\n' "$assignment"; done; }
# train FILE RUN KEY=VALUE...: trains into $scratch/RUN, with the log RUN.log. A failure shows as missing losses.
train() {
  local file=$1 name=$2 arguments
  shift 2
  mapfile -t arguments < <(sets "run.directory=$name" "$@")
  into "$name.log" limited_both 90 "$trireme" train "$file" "${arguments[@]}" || tail -n 5 "$name.log"
  [ "$mode" = dry ] || grep '^+ ' "$name.log" || true
}
losses_of() { grep '"loss"' "$1/metrics.jsonl" 2>/dev/null | value_of loss; }
# The largest relative difference between the losses of two runs; nothing where their numbers of steps differ or are 0.
loss_difference() {
  paste <(losses_of "$1") <(losses_of "$2") | awk '
    NF != 2 { bad = 1 }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= worst)) worst = d; ++n }
    END { if (!bad && n > 0) print worst + 0 }'
}
# compare NAME RUN REFERENCE TOLERANCE: their losses agree. Tolerance 0: every printed digit.
compare() {
  local difference equal=no
  [ "$mode" != dry ] || return 0
  difference=$(loss_difference "$3" "$2")
  [ "$(losses_of "$3")" != "$(losses_of "$2")" ] || equal=yes
  if [ -z "$difference" ]; then
    check "$1" fail 'a run did not reach its end; see the log' "losses within $4"
  elif [ "$4" = 0 ]; then
    check "$1" "$([ $equal = yes ] && echo pass || echo fail)" "losses within $(short "$difference")" 'equal losses'
  else
    check "$1" "$(at_least "$4" "$difference" && echo pass || echo fail)" "losses within $(awk -v a="$difference" 'BEGIN { printf "%.1e", a }')" "$4"
  fi
}
# Enters $scratch and writes what the small runs read: text, tokens, and the configurations llama, gpt2 and flash.
enter_scratch() {
  [ "$mode" != dry ] || return 0
  mkdir -p "$scratch"
  cd "$scratch"
  [ ! -e flash.yaml ] || return 0
  awk 'BEGIN { for (i = 1; i <= 3000; ++i) printf "Ship %d has three banks of %d oars, and all of them pull together.\n", i, i * i % 31 }' > text.txt
  head -n 300 text.txt > held-out.txt
  limited 60 "$trireme" data build --tokenizer bytes --output data text.txt
  limited 60 "$trireme" data build --tokenizer bytes --output held-out held-out.txt
  # Grouped keys, sizes that fill no tile. epsilon: Adam must not turn the rounding of a vanishing gradient into a full step.
  cat > llama.yaml <<'YAML'
model: {architecture: llama, layers: 4, hidden_size: 96, heads: 8, kv_heads: 2, head_size: 12, ffn_size: 200, vocab_size: 259}
training: {steps: 12, sequence_length: 65, micro_batch_size: 2, global_batch_size: 16, optimizer: {learning_rate: 1.0e-3, epsilon: 1.0e-5}}
data: {tokenizer: bytes, train: [data]}
YAML
  sed 's/train: [[]data[]]/&, validation: [held-out]/' llama.yaml > held-out.yaml
  sed 's/llama/gpt2/; s/kv_heads: 2/kv_heads: 8/' llama.yaml > gpt2.yaml
  sed 's/head_size: 12/head_size: 32/' llama.yaml > flash.yaml  # attention on tensor cores
}

# ---- test programs ----
# cases NAME PROGRAM FILTER JOBS SECONDS [WRAPPER...]: runs every test case in a process of its own and records each.
cases() {
  local name=$1 program=$2
  shift 2
  if [ "$mode" = dry ]; then
    echo "   would run: each case of ${program##*/} '$1' in a process of its own, $2 at a time, at most $3 s each${4:+, under ${*:4}}" >&3
  elif [ "$mode" = rehearse ]; then
    check "$name" skip 'a rehearsal has no GPU'
  elif [ ! -x "$program" ]; then
    check "$name" skip "there is no ${program##*/} here"
  else
    # cases.sh needs some seconds for its last results.
    limited $((part_end - EPOCHSECONDS)) env "part=$part" "case_end=$((part_end - 5))" "mode=$mode" "output=$output" "work=$work" "results=$results" \
      "$here/gpu-check/cases.sh" "$name" "$program" "$@" || check "$name" fail "ended with code $?; see $part.log"
  fi
}
