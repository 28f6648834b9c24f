#!/usr/bin/env bash
# Installs what Trireme needs on Debian and Ubuntu, then builds Release with tests in build/. Safe to repeat; quick when nothing is left to do.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache
  libopenmpi-dev openmpi-bin   # ranks
  libdnnl-dev                  # matrix products
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libxxhash-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev  # tokenizers
  catch2 libboost-context-dev  # tests; the threads of the simulated GPU
  python3                      # unpacks the corpus of the quickstart
)

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
  echo "setup: installing ${missing[*]}"
  "${run[@]}" apt-get update -q
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_missing
else
  echo "setup: this is neither Debian nor Ubuntu; going on in the hope that the equivalents of these are installed: ${packages[*]}" >&2
fi

generator=()
[ -f build/CMakeCache.txt ] || generator=(-G Ninja)
echo "setup: configuring build/"
cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTRIREME_TESTS=ON
echo "setup: building build/trireme and the tests with $(nproc) jobs"
cmake --build build --parallel "$(nproc)"
echo "setup: done"
