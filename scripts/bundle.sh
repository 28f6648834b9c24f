#!/usr/bin/env bash
# Packs a build into one archive that runs on a machine without package registries: the binary, the shared libraries it needs, mpirun, the
# configurations, gpu-check.sh, and the device tests where they were built (cmake --build build --target test_kernels_gpu test_cuda_gpu). CUDA's
# libraries and the driver are not in it: a machine with a GPU has its own.
#   ./scripts/bundle.sh [--build DIR] [--output FILE.tar.gz]      default: build, trireme-<version>-<machine>.tar.gz
# There: tar -xzf FILE; trireme-<version>-<machine>/trireme train ...      (any place; glibc at least as new as here)
# On a machine with GPUs: trireme-<version>-<machine>/scripts/gpu-check.sh
# With a scheduler: srun --mpi=pmix .../trireme train ...
set -euo pipefail
cd "$(dirname "$0")/.."

build=build
output=
while [ $# -gt 0 ]; do
  case $1 in
    --build | --output)
      [ $# -ge 2 ] || { echo "bundle: $1 needs a value" >&2; exit 64; }
      [ "$1" = --build ] && build=$2 || output=$2
      shift 2
      ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "bundle: $1 is not understood; see --help" >&2; exit 64 ;;
  esac
done
limit=$((64 << 20))

[ -x "$build/trireme" ] || { echo "bundle: there is no $build/trireme; build first (./scripts/setup.sh)" >&2; exit 66; }
for tool in mpirun orted ompi_info ldd strip; do
  command -v "$tool" >/dev/null || { echo "bundle: $tool is not installed" >&2; exit 66; }
done
name=trireme-$("$build/trireme" --version | head -n 1 | cut -d' ' -f2)-$(uname -m)
output=${output:-$name.tar.gz}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/$name
mkdir -p "$root"/{bin,lib,openmpi,pmix,share,licenses}

# ---- programs ----
programs=("$build/trireme")
for test in "$build"/tests/test_*_gpu; do
  [ -x "$test" ] && programs+=("$test")
done
for program in "${programs[@]}"; do
  cp -L "$program" "$root/bin/"
done
for program in mpirun orted; do
  cp -L "$(command -v "$program")" "$root/bin/$program"
done

# ---- Open MPI's plugins: what one host and TCP need; no fabrics, no MPI-IO, no OpenSHMEM ----
mpi_path() { ompi_info --path "$1" --parsable | cut -d: -f3 | head -n 1; }
unwanted='^mca_((atomic|fbtl|fcoll|fs|io|memheap|mtl|scoll|sharedfp|spml|sshmem)_|btl_(ofi|openib)|(osc|pml)_ucx|pml_cm|reachable_netlink)|flux|monitoring'
for plugin in "$(mpi_path pkglibdir)"/mca_*.so; do
  [[ $(basename "$plugin") =~ $unwanted ]] || cp "$plugin" "$root/openmpi/"
done
cp -rL "$(mpi_path pkgdatadir)" "$root/share/openmpi"
rm -f "$root/share/openmpi"/*.{supp,spec} "$root/share/openmpi"/*-wrapper-data.txt

# ---- libraries: all but the C library's own, the driver's and CUDA's ----
system='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec))\.so'
system+='|^lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc.*|nvidia.*|nvJitLink)\.so'
# From ldd's output: "name path" of each library that was found.
found_libraries() { awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u; }
packed() { find "$root/bin" "$root/openmpi" "$root/pmix" -type f; }
take_libraries() {
  local library path
  packed | xargs ldd 2>/dev/null | found_libraries | while read -r library path; do
    [[ $library =~ $system ]] || cp -Ln "$path" "$root/lib/$library"
  done
}
take_libraries
if [ -e "$root/lib/libpmix.so.2" ]; then  # a library with plugins of its own
  pmix=$(ldd "$root/openmpi"/mca_pmix_ext*.so | found_libraries | awk '$1 == "libpmix.so.2" { print $2; exit }')
  pmix=$(dirname "$(readlink -f "$pmix")")
  for plugin in "$pmix"/pmix/*.so; do
    [ -e "$plugin" ] && cp "$plugin" "$root/pmix/"
  done
  take_libraries
fi
missing=$(packed | LD_LIBRARY_PATH=$root/lib xargs ldd | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
[ -z "$missing" ] || { echo "bundle: not found here: $missing" >&2; exit 70; }
find "$root/bin" "$root/lib" "$root/openmpi" "$root/pmix" -type f -exec chmod u+w {} + -exec strip --strip-unneeded {} +

# ---- the rest ----
cp -r configs "$root/"
mkdir -p "$root/scripts/bench"
cp -r scripts/gpu-check.sh scripts/gpu-check "$root/scripts/"
cp scripts/bench/{against_pytorch.sh,pytorch_products.py,pytorch_step.py,summary.py} "$root/scripts/bench/"
cp LICENSE "$root/licenses/trireme"
if command -v dpkg-query >/dev/null; then
  find "$root/lib" -type f -printf '*/%f\n' | xargs -r dpkg-query -S 2>/dev/null | cut -d: -f1 | grep -v '^libx\?32' | sort -u | while read -r package; do
    [ -e "/usr/share/doc/$package/copyright" ] && cp -L "/usr/share/doc/$package/copyright" "$root/licenses/$package"
  done
fi
{
  echo "version $("$build/trireme" --version | head -n 1 | cut -d' ' -f2)"
  changes=$(git status --porcelain --untracked-files=no 2>/dev/null || true)
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)${changes:+ with changes}"
  echo "glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2) or newer"
} > "$root/BUILD"

cat > "$scratch/wrapper" <<'WRAPPER'
#!/bin/sh
# Runs the program of the same name in bin/ with the libraries and plugins beside it, wherever this directory lies.
self=$(readlink -f "$0")
root=$(dirname "$self")
PATH=$root/bin:$PATH
LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
OPAL_PREFIX=$root
OPAL_PKGLIBDIR=$root/openmpi
OPAL_PKGDATADIR=$root/share/openmpi
OPAL_SYSCONFDIR=$root/share/openmpi
PMIX_PREFIX=$root
PMIX_PKGLIBDIR=$root/pmix
PMIX_SYSCONFDIR=$root/share/openmpi
HWLOC_PLUGINS_PATH=$root/hwloc  # nothing there: the host's plugins are of another version
export PATH LD_LIBRARY_PATH OPAL_PREFIX OPAL_PKGLIBDIR OPAL_PKGDATADIR OPAL_SYSCONFDIR PMIX_PREFIX PMIX_PKGLIBDIR PMIX_SYSCONFDIR HWLOC_PLUGINS_PATH
exec "$root/bin/$(basename "$self")" "$@"
WRAPPER
chmod +x "$scratch/wrapper"
for program in mpirun "${programs[@]##*/}"; do
  cp "$scratch/wrapper" "$root/$program"
done

tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -n > "$scratch/archive"
bytes=$(stat -c %s "$scratch/archive")
[ "$bytes" -lt "$limit" ] || { echo "bundle: $bytes bytes, more than $limit" >&2; exit 70; }
mv "$scratch/archive" "$output"
libraries=("$root"/lib/*) plugins=("$root"/openmpi/*)
echo "bundle: $output, $((bytes >> 20)) MiB: ${programs[*]##*/}, ${#libraries[@]} libraries, ${#plugins[@]} MPI plugins"
