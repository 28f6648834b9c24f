# shellcheck shell=bash
# Parts probe and build: what this machine has, and the programs. Sourced by gpu-check.sh.

cuda_home=${CUDA_HOME:-/usr/local/cuda}
# A program in PATH or in the CUDA Toolkit.
tool() { command -v "$1" 2>/dev/null || { [ -x "$cuda_home/bin/$1" ] && echo "$cuda_home/bin/$1"; } || true; }
# The version of a tool, from its --version.
tool_version() {
  local program
  program=$(tool "$1")
  [ -n "$program" ] || { echo missing; return; }
  ("$program" --version 2>&1 || true) | awk '
    match($0, /[0-9]+\.[0-9]+[.0-9]*/) { print substr($0, RSTART, RLENGTH); found = 1; exit }
    END { if (!found) print "of unknown version" }'
}
# The file of a shared library: in the loader's paths and where Trireme also looks, then in Python packages.
library_file() {
  local name=$1 loader=${LD_LIBRARY_PATH:-} folder file
  for folder in ${loader//:/ } "$cuda_home/lib64"; do
    for file in "$folder/$name"*; do [ -e "$file" ] && { readlink -f "$file"; return; }; done
  done
  file=$( (ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) | awk -v name="$name" 'index($1, name) == 1 { print $NF; exit }')
  [ -z "$file" ] || { readlink -f "$file"; return; }
  for file in "${VIRTUAL_ENV:-/nowhere}" "$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)" /usr/lib /usr/local/lib "$HOME/.local/lib" "$HOME/.pyenv/versions/"*/lib /opt/conda/lib; do
    for file in "$file"/{,lib/}python3*/{site,dist}-packages/nvidia/*/lib/"$name"*; do [ -e "$file" ] && { readlink -f "$file"; return; }; done
  done
  return 0
}
# Sets cublas, nccl, cudnn: their files or ''. A library that only a Python package has is added to LD_LIBRARY_PATH, for this check alone.
find_libraries() {
  local file
  cublas=$(library_file libcublasLt.so.) nccl=$(library_file libnccl.so.2) cudnn=$(library_file libcudnn.so.9) from_python=''
  for file in "$cublas" "$nccl" "$cudnn"; do
    [[ $file == */python3*/nvidia/* ]] || continue
    from_python+=" $(basename "$file")"
    export LD_LIBRARY_PATH=$(dirname "$file")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
}
# What building needs and this machine lacks.
missing_to_build() {
  local name
  for name in nvcc cmake g++ make; do
    [ -n "$(tool $name)" ] || { [ $name = make ] && [ -n "$(tool ninja)" ]; } || printf '%s ' $name
  done
}

part_probe() {
  local line index name uuid capability memory driver mig ecc errors generation width found=''
  while IFS=, read -r index name uuid capability memory driver mig ecc errors generation width; do
    check "GPU $index" "$([[ ${errors// /} =~ ^[1-9] ]] && echo fail || echo info)" \
      "${name# },$memory, sm_${capability//[ .]/}, driver$driver, MIG$mig, ECC$ecc, uncorrected errors$errors, PCIe$generation x$width" 'no uncorrected errors'
    [[ $mig != *Enabled* ]] || check "GPU $index: MIG" info 'on: a slice is measured, not the GPU'
  done <<< "$gpus"
  check 'PyTorch' "$(have_torch && echo info || echo skip)" "$(have_torch && python3 -c 'import torch; print(torch.__version__)' || echo 'python3 has no torch that sees the GPU')"
  for name in nvcc cmake ninja g++ mpirun python3 compute-sanitizer nsys ncu; do
    found+="$name $(tool_version $name), "
  done
  check 'tools' info "${found%, }"
  check 'processor' info "$(nproc) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
  [ "$mode" = run ] || return 0
  check 'cuBLASLt' "$([ -n "$cublas" ] && echo info || echo fail)" "${cublas:-libcublasLt.so was not found: run.device=cuda will be refused}"
  check 'NCCL' "$([ -n "$nccl" ] && echo info || echo skip)" "${nccl:-libnccl.so.2 was not found: ranks can communicate through host memory only}"
  check 'cuDNN' "$([ -n "$cudnn" ] && echo info || echo skip)" "${cudnn:-libcudnn.so.9 was not found: no kernels.attention=cudnn}"
  [ -z "$from_python" ] || check 'libraries of Python packages' info "LD_LIBRARY_PATH was set for this check:$from_python"
  nvidia-smi || true
  nvidia-smi topo -m > "$output/topology.txt" 2>&1 || true
  cat "$output/topology.txt"
  uname -a
}

# Debian packages, unpacked and not installed.
use_packages() {
  local unpacked=$work/packages triple deb name data
  triple=$(uname -m)-linux-gnu
  if [ ! -e "$unpacked/done" ]; then
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    for deb in "$packages"/*.deb; do dpkg -x "$deb" "$unpacked"; done
    # What update-alternatives would have done.
    for name in mpirun mpiexec; do [ -e "$unpacked/usr/bin/$name" ] || ln -s orterun "$unpacked/usr/bin/$name"; done
    for name in mpicxx mpicc; do
      [ -e "$unpacked/usr/bin/$name" ] || ln -s opal_wrapper "$unpacked/usr/bin/$name"
      data=$unpacked/usr/share/openmpi/$name-wrapper-data.txt
      [ -e "$data" ] || ln -s "$name.openmpi-wrapper-data.txt" "$data"
    done
    touch "$unpacked/done"
  fi
  export PATH=$unpacked/usr/bin:$PATH OPAL_PREFIX=$unpacked/usr CMAKE_PREFIX_PATH=$unpacked/usr
  local libraries=$unpacked/usr/lib/$triple
  export LD_LIBRARY_PATH=$libraries:$libraries/openmpi/lib:$libraries/pmix2/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LIBRARY_PATH=$libraries CPATH=$unpacked/usr/include PMIX_PREFIX=$unpacked/usr
  export PMIX_PKGLIBDIR=$libraries/pmix2/lib/pmix OPAL_PKGDATADIR=$unpacked/usr/share/openmpi OPAL_SYSCONFDIR=$unpacked/etc/openmpi
}
# Sets trireme, kernel_tests, cuda_tests: the programs, built or unpacked; '' where there are none.
find_programs() {
  local folder
  [ -z "$packages" ] || use_packages
  if [ -d "$bundle" ]; then
    folder=$bundle trireme=$folder/trireme kernel_tests=$folder/test_kernels_gpu cuda_tests=$folder/test_cuda_gpu
  elif [ -n "$bundle" ]; then
    folder=$(ls -d "$work"/bundle/trireme-* 2>/dev/null || echo "$work/bundle/trireme")
    trireme=$folder/trireme kernel_tests=$folder/test_kernels_gpu cuda_tests=$folder/test_cuda_gpu
  else
    folder=$([ "$mode" = rehearse ] && echo "$root/build" || echo "$work/build")
    trireme=$folder/trireme kernel_tests=$folder/tests/test_kernels_gpu cuda_tests=$folder/tests/test_cuda_gpu
  fi
}
part_build() {
  local generator=() built driver
  if [ -f "$bundle" ]; then
    [ "$mode" = dry ] || { rm -rf "$work/bundle"; mkdir -p "$work/bundle"; }
    limited 60 tar -C "$work/bundle" -xzf "$bundle"
    find_programs
  elif [ -z "$bundle" ] && [ "$mode" != rehearse ]; then
    [ -z "$(missing_to_build)" ] || [ "$mode" = dry ] || { echo "cannot build: missing $(missing_to_build); use --bundle"; return 1; }
    [ -n "$(tool ninja)" ] && [ ! -e "$work/build/CMakeCache.txt" ] && generator=(-G Ninja)
    # Warnings of another compiler are no reason to end here, and nothing can be downloaded.
    limited 120 cmake -S "$root" -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=ON -DTRIREME_TESTS=ON -DTRIREME_WERROR=OFF \
      -DTRIREME_FETCH=OFF -DTRIREME_UNITY=ON "-DCMAKE_CUDA_COMPILER=$(tool nvcc)" "-DCMAKE_CUDA_ARCHITECTURES=${gpu_capability//./}-real"
    limited 540 cmake --build "$work/build" --parallel "$(nproc)" --target trireme
  fi
  [ "$mode" != dry ] || return 0
  [ -x "$trireme" ] || { echo "there is no $trireme"; return 1; }
  "$trireme" --version > "$output/version.txt"
  cat "$output/version.txt"
  check 'program' pass "$(head -n 1 "$output/version.txt"), $([ -n "$bundle" ] && echo "from $(basename "$bundle")" || echo 'built here')"
  [ "$mode" = run ] || return 0
  built=$(sed -n 's/.*CUDA \([0-9.]*\).*/\1/p' "$output/version.txt") driver=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')
  if [ -z "$built" ]; then
    check 'CUDA of the build' fail 'this program was built without CUDA' 'a build with CUDA'
  else
    check 'CUDA of the driver' "$(at_least "${driver%%.*}" "${built%%.*}" && echo pass || echo fail)" "the driver supports $driver, the build is $built" \
      "at least ${built%%.*}.0"
  fi
  if [ -x "$kernel_tests" ]; then
    into "$output/logs/launch.log" limited_both 60 "$kernel_tests" 'bias: engines agree' --warn NoTests &&
      check 'first launch' pass 'a kernel ran and its result is right' ||
      check 'first launch' fail "$(grep -m 1 -iE 'error|terminate|No test' "$output/logs/launch.log" || tail -n 1 "$output/logs/launch.log")"
  fi
}
# Builds the device tests, which a bundle brings along. They come after the first figures, as they take minutes.
build_tests() {
  [ -z "$bundle" ] && [ "$mode" != rehearse ] && [ ! -x "$kernel_tests" ] || return 0
  limited 480 cmake --build "$work/build" --parallel "$(nproc)" --target test_kernels_gpu test_cuda_gpu
}
