#!/usr/bin/env bash
# Registers, shared memory, stack and spills of every GPU kernel, as ptxas reports them, and the tensor-core instructions in its PTX. Needs nvcc, no GPU.
#   ./scripts/kernel-resources.sh [sm_90] [FILE.cu...]
# Exits 1 if a kernel spills, or if no file has an mma.sync.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=sm_90
[[ ${1:-} == sm_* ]] && { arch=$1; shift; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[[ -x $nvcc ]] || { echo "kernel-resources: no nvcc on this machine" >&2; exit 2; }
files=("$@")
[[ ${#files[@]} -gt 0 ]] || files=(kernels/cuda/*.cu)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '| file | kernel | registers | static shared, bytes | stack, bytes | spilled, bytes |\n|---|---|---|---|---|---|\n'
spilled=0
for file in "${files[@]}"; do
  "$nvcc" -std=c++20 --expt-relaxed-constexpr -I. -arch="$arch" -Xptxas -v --keep --keep-dir "$scratch" -c "$file" -o "$scratch/object" 2> "$scratch/report"
  c++filt < "$scratch/report" | awk -v file="$(basename "$file")" '
    /Compiling entry function/ {
      kernel = $0
      sub(/.*Compiling entry function ./, "", kernel); sub(/. for .sm.*/, "", kernel)
      sub(/^void /, "", kernel); gsub(/trireme::cuda::|\(anonymous namespace\)::|trireme::/, "", kernel); sub(/\(.*/, "", kernel)
    }
    /bytes stack frame/ { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ {
      registers = $0; sub(/.*Used /, "", registers); sub(/ registers.*/, "", registers)
      shared = 0
      if (match($0, /[0-9]+ bytes smem/)) { shared = substr($0, RSTART, RLENGTH); sub(/ bytes smem/, "", shared) }
      printf "| %s | `%s` | %s | %s | %s | %s |\n", file, kernel, registers, shared, stack, spill
    }' | tee "$scratch/rows"
  awk -F'|' '$7 + 0 > 0 { found = 1 } END { exit !found }' "$scratch/rows" && spilled=1
done
echo "mma.sync in the PTX: $(cat "$scratch"/*.ptx | grep -c mma.sync || true)" | tee "$scratch/mma" >&2
[[ $spilled -eq 0 ]] && ! grep -q ': 0$' "$scratch/mma"
