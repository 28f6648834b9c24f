#!/usr/bin/env bash
# The configure step where libraries are missing, old, or part of the build: configure_test.sh SOURCE
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

# configure NAME EXIT_CODE OPTION...: its output is in $scratch/NAME.txt
configure() {
  local name=$1 expected=$2 code=0
  shift 2
  cmake -S "$source" -B "$scratch/$name" -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER= -DTRIREME_TESTS=OFF -DTRIREME_CUDA=OFF -DTRIREME_MPI=OFF \
    -DTRIREME_FETCH=OFF "$@" >"$scratch/$name.txt" 2>&1 || code=$?
  [ "$code" = "$expected" ] || { echo "$name: exit code $code instead of $expected"; cat "$scratch/$name.txt"; status=1; }
}
# says NAME TEXT: the output contains the text.
says() { grep -qF -- "$2" "$scratch/$1.txt" || { echo "$1: does not say '$2'"; cat "$scratch/$1.txt"; status=1; }; }

mkdir -p "$scratch/old/oneapi/dnnl" "$scratch/cli11"
printf '#define DNNL_VERSION_%s 1\n' MAJOR MINOR PATCH >"$scratch/old/oneapi/dnnl/dnnl_version.h"
printf 'add_library(CLI11 INTERFACE)\nadd_library(CLI11::CLI11 ALIAS CLI11)\n' >"$scratch/cli11/CMakeLists.txt"

configure missing 1 -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -DDNNL_INCLUDE="$scratch/old"
says missing 'CLI11 2.1 or newer; -DTRIREME_FETCH=ON downloads version 2.4.1'
says missing 'OpenMP for '
says missing 'is version 1.1.1'
says missing 'apt-get install libcli11-dev lib'

configure parts 0 -DSODIUM_INCLUDE= -DSODIUM_LIBRARY= -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DFETCHCONTENT_SOURCE_DIR_CLI11="$scratch/cli11"
says parts 'CLI11 2.1 or newer is needed: the sources of version 2.4.1 become part of this build'
says parts 'MPI: not found; one process'
says parts 'libsodium: not found; no audit log and no encryption between hosts: security.audit.enabled and security.encryption required are refused'
for stub in comm/mpi_stub crypto/sodium_stub; do
  cmake --build "$scratch/parts" --target "CMakeFiles/trireme_parallel.dir/parallel/$stub.cpp.o" >"$scratch/stub.txt" 2>&1 ||
    { echo "the build without a library:"; cat "$scratch/stub.txt"; status=1; }
done

if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  mkdir -p "$scratch/headers" "$scratch/frontend" "$scratch/old-frontend"
  printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 0\n' >"$scratch/headers/cudnn_version.h"
  version() { printf '#define CUDNN_FRONTEND_%s_VERSION %s\n' MAJOR 1 MINOR "$1" PATCH 0; }
  version 20 >"$scratch/frontend/cudnn_frontend_version.h"
  version 18 >"$scratch/old-frontend/cudnn_frontend_version.h"
  with_cudnn=(-DTRIREME_CUDA=ON -DCUDNN_INCLUDE="$scratch/headers")
  configure cudnn 0 "${with_cudnn[@]}" -DCUDNN_FRONTEND_INCLUDE="$scratch/frontend"
  says cudnn 'cuDNN: found'
  configure old-frontend 0 "${with_cudnn[@]}" -DCUDNN_FRONTEND_INCLUDE="$scratch/old-frontend"
  says old-frontend 'cuDNN: not found; attention on GPUs has the built-in kernels only, no kernels.attention: cudnn (its frontend 1.20 or newer is needed'
  configure no-cudnn 0 -DTRIREME_CUDA=ON -DTRIREME_CUDNN=OFF
  says no-cudnn 'no kernels.attention: cudnn (TRIREME_CUDNN is off)'
fi
exit $status
