#!/usr/bin/env bash
# Installs what Trireme needs on Debian and Ubuntu, then builds Release in build/. Safe to repeat; quick when nothing is left to do.
#   ./scripts/setup.sh             the binary build/trireme; its CUDA kernels where this machine has an NVIDIA GPU
#   ./scripts/setup.sh --cuda      with the CUDA kernels in any case (needs the CUDA Toolkit)
#   ./scripts/setup.sh --tests     with all tests, those of the CUDA kernels on the simulated GPU included
# What an earlier call has added to build/ stays. Output of apt and the compiler goes to build/setup.log.
set -euo pipefail
cd "$(dirname "$0")/.."

tests='' cuda=''
for option in "$@"; do
  case $option in
    --tests) tests=yes ;;
    --cuda) cuda=yes ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: unknown option $option; see --help" >&2; exit 64 ;;
  esac
done

packages=(
  g++ cmake ninja-build ccache
  libopenmpi-dev openmpi-bin   # ranks
  libdnnl-dev                  # matrix products
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libxxhash-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev  # tokenizers
  libdw-dev                    # stacks of threads
  libsodium-dev                # encryption between hosts, hashes and signatures of the audit log
  python3                      # unpacks the corpus of the quickstart
)
[ -z "$tests" ] || packages+=(catch2 libboost-context-dev)  # Boost: the threads of the simulated GPU

mkdir -p build
log=$PWD/build/setup.log
: >"$log"

# duration SECONDS: "45 s", "3:05 min"
duration() { if [ "$1" -lt 60 ]; then echo "$1 s"; else printf '%d:%02d min\n' $(($1 / 60)) $(($1 % 60)); fi; }

# stage TEXT COMMAND...: one line for a stage, with a count and the time left while Ninja builds; the end of the log if it fails.
stage() {
  local text=$1 started=$SECONDS terminal='' pid progress status=0 last=$SECONDS
  shift
  [ ! -t 1 ] || terminal=yes
  if [ -n "$terminal" ]; then printf 'setup: %s ...' "$text"; else echo "setup: $text ..."; fi
  echo "== $text" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  pid=$!
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM  # a background job of a script ignores Ctrl-C
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    progress=$(tail -n 1 "$log" | tr '\r' '\n' | sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 \2/p' | tail -n 1)
    [ -n "$progress" ] || continue
    set -- $progress
    if [ "$1" -ge 5 ] && { [ -n "$terminal" ] || [ $((SECONDS - last)) -ge 20 ]; }; then
      last=$SECONDS
      progress="$1 of $2, about $(duration $(((SECONDS - started) * ($2 - $1) / $1))) left"
      if [ -n "$terminal" ]; then printf '\r\033[Ksetup: %s: %s' "$text" "$progress"; else echo "setup: $text: $progress"; fi
    fi
  done
  wait "$pid" || status=$?
  trap - INT TERM
  [ -z "$terminal" ] || printf '\r\033[K'
  if [ "$status" -ne 0 ]; then
    echo "setup: $text failed (exit code $status); the end of build/setup.log:" >&2
    tail -n 25 "$log" >&2
    exit 70
  fi
  if [ -n "$terminal" ]; then echo "setup: $text: done in $(duration $((SECONDS - started)))"; else echo "setup: done in $(duration $((SECONDS - started)))"; fi
}

install_missing() {
  local installed missing=() package
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: all packages are installed"
    return
  fi

  local run=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "setup: packages are missing and this user may not install them; run this line, then start again:" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    run=(sudo -n)
  fi
  stage "reading the package lists" "${run[@]}" apt-get update -q
  stage "installing ${missing[*]}" "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_missing
else
  echo "setup: not a Debian or Ubuntu system; nothing is installed, so the equivalents of these packages must be there: ${packages[*]}" >&2
fi

options=(-DCMAKE_BUILD_TYPE=Release)
[ -f build/CMakeCache.txt ] || options+=(-G Ninja -DTRIREME_TESTS=OFF -DTRIREME_CUDA=OFF -DTRIREME_UNITY=ON)
[ -z "$tests" ] || options+=(-DTRIREME_TESTS=ON -DTRIREME_CUDA=ON)
[ -z "$cuda" ] && [ ! -e /dev/nvidiactl ] || options+=(-DTRIREME_CUDA=ON)
# Where nothing runs or reads the machine code of the GPU kernels, one architecture shows that nvcc compiles them. -U: all architectures.
if [ -n "$cuda" ] || [ -e /dev/nvidiactl ] || command -v cuobjdump >/dev/null; then options+=(-UCMAKE_CUDA_ARCHITECTURES); else options+=(-DCMAKE_CUDA_ARCHITECTURES=90-real); fi
stage "configuring build/" cmake -S . -B build "${options[@]}"
sed -n '/^-- Trireme /,$ { /: not found\|: left out/s/^  /setup: /p }' "$log"
what="build/trireme"
target=(--target trireme)
[ -z "$tests" ] || what="build/trireme and the tests" target=()
stage "compiling $what with $(nproc) jobs" env NINJA_STATUS='[%f/%t] ' cmake --build build "${target[@]}" --parallel "$(nproc)"
