#!/usr/bin/env bash
# Proves that the tests notice what they are there for: plants each bug of tests/mutations/, one at a time, in a scratch copy of the tree, and runs the
# default suite until a test fails.
#   ./scripts/mutations.sh             all of them
#   ./scripts/mutations.sh 04 norm     those whose name contains one of the words
#   ./scripts/mutations.sh cuda        those of the GPU backend, caught on the simulated GPUs
#   ./scripts/mutations.sh --list      their names
# A patch that does not apply or does not compile is an error. Exits 1 if a bug survives. Without the CUDA toolkit those of the GPU backend are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
limit=600  # seconds for one test program, as under CTest: a bug that makes ranks wait for ever is caught too

selected=()
for name in $(cd tests/mutations && printf '%s\n' *.patch | sort -n); do
  name=${name%.patch}
  wanted=$([[ $# -eq 0 || $1 == --list ]] && echo yes || echo no)
  for word in "$@"; do [[ $name == *"$word"* ]] && wanted=yes; done
  [[ $wanted == yes ]] && selected+=("$name")
done
if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${selected[@]}"
  exit 0
fi
[[ ${#selected[@]} -gt 0 ]] || { echo "mutations: no patch is called $*" >&2; exit 2; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
mkdir "$tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'for f; do [ ! -f "$f" ] || cp -p --parents "$f" "$0"; done' "$tree"
sed -i '/add_dependencies(test_/d' "$tree/tests/CMakeLists.txt"  # only test_e2e starts the product itself; the others need not wait for its GPU code
fail() {
  echo "mutations: $1" >&2
  [[ -f ${2:-} ]] && tail -n 20 "$2" >&2
  exit 2
}
export CCACHE_BASEDIR=$scratch CCACHE_NOHASHDIR=1  # so that another run finds what this one compiled
build() { nice cmake --build "$scratch/build" --target "$@" > "$scratch/log" 2>&1; }

# Runs one test program until its first failing test; prints that test's name.
first_failure() {
  local status=0
  timeout "$limit" "$scratch/build/tests/$1" '~[slow]' --abort --reporter xml > "$scratch/xml" 2> "$scratch/stderr" || status=$?
  [[ $status -eq 0 ]] && return 0
  local test
  test=$(sed -n 's/.*<TestCase name="\([^"]*\)".*/\1/p' "$scratch/xml" | tail -n 1 | sed 's/&quot;/"/g; s/&apos;/'"'"'/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g')
  echo "${1#test_}: ${test:-before its first test}$([[ $status -eq 124 ]] && echo ' (ran too long)')"
}

of_gpu() { [[ $1 == *-cuda-* ]]; }

# The programs in the order in which they probably notice a change of these files.
programs_for() {
  local parity=(test_parity test_golden)
  if of_gpu "$1"; then
    if grep -q '^+++ b/kernels/cuda/.*\.cu' "$1"; then echo test_kernels test_cuda test_cuda_sim; else echo test_cuda test_kernels test_cuda_sim; fi
    return
  fi
  case $(sed -n 's|^+++ b/||p' "$1") in
    *kernels/*) echo test_kernels "${parity[@]}" test_unit test_parallel ;;
    *parallel/pipeline/*) echo test_parallel "${parity[@]}" test_unit test_kernels ;;
    *trainer/data/* | *trainer/checkpoint/* | *trainer/files/*) echo test_unit "${parity[@]}" test_parallel test_kernels ;;
    *) echo "${parity[@]}" test_parallel test_unit test_kernels ;;
  esac
}

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
mapfile -t programs < <(for name in "${selected[@]}"; do programs_for "$source/tests/mutations/$name.patch" | tr ' ' '\n'; done | sort -u)
build "${programs[@]}" || fail "the tree does not build" "$scratch/log"
for program in "${programs[@]}"; do
  failure=$(first_failure "$program")
  [[ -z $failure ]] || fail "the tree fails without any bug planted: $failure" "$scratch/xml"
done

survivors=0
printf '| planted | trap | caught by | caught |\n|---|---|---|---|\n'
for name in "${selected[@]}"; do
  patch=$source/tests/mutations/$name.patch
  (cd "$tree" && patch -p1 --fuzz=0 --no-backup-if-mismatch < "$patch" > "$scratch/log" 2>&1) || fail "$name does not apply" "$scratch/log"
  failure=
  for program in $(programs_for "$patch"); do
    build "$program" || fail "$name does not compile" "$scratch/log"
    failure=$(first_failure "$program")
    [[ -z $failure ]] || break
  done
  (cd "$tree" && patch -p1 -R --no-backup-if-mismatch < "$patch" > "$scratch/log" 2>&1) || fail "$name cannot be taken back" "$scratch/log"
  [[ -n $failure ]] || survivors=$((survivors + 1))
  printf '| %s | %s | %s | %s |\n' "$name" "$(sed -n '1s/^# //p' "$patch")" "${failure:--}" "$([[ -n $failure ]] && echo yes || echo NO)"
done
echo "mutations: ${#selected[@]} planted, $survivors survived" >&2
[[ $survivors -eq 0 ]]
