#!/usr/bin/env bash
# Proves that the tests notice what they are there for: plants each bug of tests/mutations/, one at a time, in a scratch copy of the tree, and runs the
# default suite until a test fails; the tests of the file that its table names as caught_by run first.
#   ./scripts/mutations.sh             all of them
#   ./scripts/mutations.sh 04 norm     those whose name contains one of the words
#   ./scripts/mutations.sh cuda        those of the GPU backend, caught on the simulated GPUs
#   ./scripts/mutations.sh --results FILE [WORD...]   the same in slices: each row is added to FILE at once, and a later run of the same tree with it continues
#                                      behind the rows that are there; the end counts all of them. `scripts/plant.py --learn FILE` then writes the file
#                                      of the test that caught each bug into its table, which makes the next run several times shorter
#   ./scripts/mutations.sh --slice K/N [WORD...]      of these every N-th, starting with the K-th: so N machines share them
#   ./scripts/mutations.sh --list      their names
#   ./scripts/mutations.sh --check     whether every bug applies exactly once and its caught_by exists, which the default suite asks too
#   ./scripts/mutations.sh --verify [WORD...]   plants those of the training path and runs `trireme verify` instead: is each found, and are axis and kind of
#                                      layer those of its line "verify: AXIS LAYER"? "verify: - REASON" where verify cannot see it
# scripts/plant.py plants the bugs and describes their tables. A bug that does not apply or does not compile is an error. Exits 1 if a bug survives. Without the
# CUDA toolkit those of the GPU backend are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
limit=1200  # seconds for one test program: a bug that makes ranks wait without end is caught too

verify='' results='' list='' slice=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --check) exec scripts/plant.py --check ;;
    --list) list=yes ;;
    --verify) verify=yes ;;
    --results | --slice)
      [[ -n ${2:-} ]] || { echo "mutations: $1 needs a value" >&2; exit 2; }
      if [[ $1 == --slice ]]; then slice=(--slice "$2"); else results=$(realpath -m "$2"); fi
      shift ;;
    *) echo "mutations: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
table=$(scripts/plant.py --table "${slice[@]}" -- "$@") || exit 2
selected=()
declare -A files trap expectation known
while IFS='|' read -r name changed trap_of_it expected known_file; do
  case $verify$expected in yes | yes-*) continue ;; esac  # verify could not see it
  [[ -z $name ]] || selected+=("$name")
  files[_$name]=$changed trap[_$name]=$trap_of_it expectation[_$name]=$expected known[_$name]=$known_file
done <<< "${table//$'\t'/|}"  # tabs are white space, of which two would count as one
if [[ -z ${selected[*]} ]]; then
  echo "mutations: no bug${verify:+ that verify could see} is called $*" >&2
  exit 2
fi
if [[ -n $list ]]; then
  printf '%s\n' "${selected[@]}"
  exit
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
mkdir "$tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'for f; do [ ! -f "$f" ] || cp -p --parents "$f" "$0"; done' "$tree"
sed -i '/add_dependencies(test_.* trireme)/d' "$tree/tests/CMakeLists.txt"  # only test_e2e starts the product itself; the others need not wait for its GPU code
fail() {
  echo "mutations: $1" >&2
  [[ -f ${2:-} ]] && tail -n 20 "$2" >&2
  exit 2
}
export CCACHE_BASEDIR=$scratch CCACHE_NOHASHDIR=1  # so that another run finds what this one compiled
build() {
  local targets=("$@")
  [[ $1 != test_e2e ]] || targets+=(trireme)  # which it starts
  nice cmake --build "$scratch/build" --target "${targets[@]}" > "$scratch/log" 2>&1
}

# Runs one test program, or the tests of one of its files, until its first failing test; prints that test's file and name.
first_failure() {
  local status=0 spec='~[slow]' test
  [[ -z ${2:-} ]] || spec="[#$(basename "$2" .cpp)]~[slow]~[.]"  # to ask for a tag alone would run hidden tests too
  timeout -k 10 "$limit" "$scratch/build/tests/$1" "$spec" --filenames-as-tags --abort --reporter xml > "$scratch/xml" 2> "$scratch/stderr" || status=$?
  [[ $status -eq 0 ]] && return 0
  test=$(sed -n 's|.*<TestCase name="\([^"]*\)".* filename="[^"]*/tests/\([^"]*\)".*|\2: \1|p' "$scratch/xml" | tail -n 1 |
    sed 's/&quot;/"/g; s/&apos;/'"'"'/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g')
  echo "${test:-${1#test_}: before its first test}$([[ $status -eq 124 ]] && echo ' (ran too long)')"
}

# A digest of the tree without a bug. What a results file says of another tree says nothing of this one.
open_results() {
  local digest
  [[ $results != "$source"/* ]] || rm -f "$tree/${results#"$source"/}"
  digest=$(cd "$tree" && find . -type f ! -name '*.md' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
  [[ -s $results ]] || printf '# tree %s\n| planted | trap | caught by | caught |\n|---|---|---|---|\n' "$digest" > "$results"
  [[ $(head -n 1 "$results") == "# tree $digest" ]] || fail "$results holds the results of another tree; give another file"
}
has_result() { [[ -n $results ]] && grep -qF "| $1 |" "$results"; }

# By the tables in the copy, so that they may be edited meanwhile.
plant() { "$tree/scripts/plant.py" --plant "$1" "$tree" > "$scratch/log" 2>&1 || fail "$1 does not apply" "$scratch/log"; }
take_back() { "$tree/scripts/plant.py" --take-back "$1" "$tree" > "$scratch/log" 2>&1 || fail "$1 cannot be taken back" "$scratch/log"; }

# Simple layouts first: what is found is named by the first layout that shows it.
run_verify() {
  local status=0
  timeout -k 10 "$limit" "$scratch/build/trireme" verify "$tree/tests/mutations/verify.yaml" --layouts \
    "tp2 pp2 tp2sp tp4 pp3 dp2 dp2z1 dp3z2 dp2z3 dp4z2rep2 mb2 tp2pp2dp2z3sp tp2pp2sp-interleaved_1f1b pp2-gpipe pp2-interleaved_1f1b pp2-zb_h1 pp2-zb_h2 pp2dp2z3-zb_v dp2z3-selective full" || status=$?
  timeout -k 10 "$limit" "$scratch/build/trireme" verify "$tree/tests/mutations/verify-gpt2.yaml" --layouts \
    "tp2 tp3sp pp2 dp2 dp2z3mb2 tp3pp2dp2z2sp pp2-interleaved_1f1b pp2-zb_v pp2-zb_h1-full selective" || status=$?
  return $status
}
verify_all() {
  cmake -S "$tree" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_TESTS=OFF -DTRIREME_CUDA=OFF > "$scratch/log" 2>&1 || fail "the tree cannot be configured" "$scratch/log"
  build trireme || fail "the tree does not build" "$scratch/log"
  run_verify > "$scratch/found" 2>&1 || fail "verify finds something without any bug planted" "$scratch/found"
  local found=0 right=0 name expected named as_expected
  printf '| planted | found | axis and layer named | expected | as expected |\n|---|---|---|---|---|\n'
  for name in "${selected[@]}"; do
    plant "$name"
    build trireme || fail "$name does not compile" "$scratch/log"
    named=
    if ! run_verify > "$scratch/found" 2>&1; then
      found=$((found + 1))
      named=$(sed -n 's/ (every layout)//; s/^ *axis \(.*\), layer \([a-z_]*\); .*/\1 \2/p' "$scratch/found" | head -n 1)
    fi
    take_back "$name"
    expected=${expectation[_$name]}
    # Where several axes are needed, as by a bug of sequence parallelism with virtual stages, the expected one is among those named.
    as_expected=no
    [[ "+${named% *}+" != *"+${expected% *}+"* || ${named##* } != "${expected##* }" ]] || as_expected=yes
    [[ $as_expected == no ]] || right=$((right + 1))
    printf '| %s | %s | %s | %s | %s |\n' "$name" "$([[ -n $named ]] && echo yes || echo NO)" "${named:--}" "$expected" "$as_expected"
  done
  echo "mutations: ${#selected[@]} planted, verify found $found and named axis and layer of $right" >&2
  [[ $found -eq ${#selected[@]} && $((right * 5)) -ge $((${#selected[@]} * 4)) ]]
}

of_gpu() { [[ $1 == *-cuda-* || ${known[_$1]} =~ ^(cuda|trace)/ ]]; }

# The programs in the order in which they probably notice a change of the files of this bug.
programs_for() {
  local parity=(test_parity test_golden)
  if of_gpu "$1"; then
    if [[ " ${files[_$1]}" =~ \ kernels/cuda/[^\ ]*\.cu ]]; then echo test_kernels test_trace test_cuda test_cuda_sim; else echo test_cuda test_kernels test_cuda_sim; fi
    return
  fi
  case ${files[_$1]} in
    *kernels/*) echo test_kernels "${parity[@]}" test_unit test_parallel ;;
    *trainer/plan/*) echo test_plan test_unit "${parity[@]}" ;;
    *parallel/pipeline/*) echo test_parallel "${parity[@]}" test_unit test_kernels ;;
    *trainer/loop/* | *trainer/model/* | *trainer/run/* | *trainer/layout/* | *parallel/*) echo "${parity[@]}" test_parallel test_unit test_kernels ;;
    *) echo test_unit "${parity[@]}" test_parallel test_kernels ;;
  esac
}

if [[ -n $verify ]]; then
  verify_all
  exit
fi
echo "mutations: building and testing the tree as it is" >&2
cmake -S "$tree" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_TESTS=ON > "$scratch/log" 2>&1 || fail "the tree cannot be configured" "$scratch/log"
if [[ ! -d $scratch/build/tests/CMakeFiles/test_cuda.dir ]]; then
  for i in "${!selected[@]}"; do
    of_gpu "${selected[i]}" || continue
    echo "mutations: ${selected[i]} skipped: no CUDA toolkit here" >&2
    unset "selected[$i]"
  done
  [[ ${#selected[@]} -gt 0 ]] || exit 0
fi
if [[ -n $results ]]; then
  open_results
  for i in "${!selected[@]}"; do
    if has_result "${selected[i]}"; then unset "selected[$i]"; fi
  done
fi
mapfile -t programs < <(for name in "${selected[@]}"; do programs_for "$name" | tr ' ' '\n'; done | sort -u)
# A caught_by may name a file of another program, such as test_e2e, of which only that file is needed.
mapfile -t further < <(for name in "${selected[@]}"; do
  file=${known[_$name]}
  if [[ -n $file && " ${programs[*]} " != *" test_${file%%/*} "* ]]; then echo "$file"; fi
done | sort -u)
for tests in "${programs[@]}" "${further[@]}"; do
  program=$tests file=
  if [[ $tests == */* ]]; then program=test_${tests%%/*} file=$tests; fi
  build "$program" || fail "the tree does not build" "$scratch/log"
  if has_result "nothing, $tests"; then continue; fi
  failure=$(first_failure "$program" "$file")
  [[ -z $failure ]] || fail "the tree fails without any bug planted: $failure" "$scratch/xml"
  [[ -z $results ]] || printf '| nothing, %s | - | - | - |\n' "$tests" >> "$results"
done

[[ -n $results ]] || printf '| planted | trap | caught by | caught |\n|---|---|---|---|\n'
planted=0 survivors=0
for name in "${selected[@]}"; do
  plant "$name"
  failure=
  known_file=${known[_$name]}
  if [[ -n $known_file ]]; then
    program=test_${known_file%%/*}
    build "$program" || fail "$name does not compile" "$scratch/log"
    failure=$(first_failure "$program" "$known_file")
    [[ $failure == "$known_file: "* ]] || failure=  # a file without a test is no failing test either
  fi
  for program in $([[ -n $failure ]] || programs_for "$name"); do
    build "$program" || fail "$name does not compile" "$scratch/log"
    failure=$(first_failure "$program")
    [[ -z $failure ]] || break
  done
  take_back "$name"
  planted=$((planted + 1))
  [[ -n $failure ]] || survivors=$((survivors + 1))
  printf '| %s | %s | %s | %s |\n' "$name" "${trap[_$name]}" "${failure:--}" "$([[ -n $failure ]] && echo yes || echo NO)" | tee -a "${results:-/dev/null}"
done
if [[ -n $results ]]; then
  planted=$(grep -cE '\| (yes|NO) \|$' "$results" || true)
  survivors=$(grep -cF '| NO |' "$results" || true)
fi
echo "mutations: $planted planted, $survivors survived" >&2
[[ $survivors -eq 0 ]]
