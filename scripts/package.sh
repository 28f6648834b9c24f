#!/usr/bin/env bash
# Makes the packages of a build: trireme_VERSION_ARCHITECTURE.deb, trireme-VERSION-Linux.tar.zst, and a directory trireme-VERSION-container with the
# bundle and the recipes of container images.
#   ./scripts/package.sh [--build DIR] [--output DIR]      default: build, build/packages
# There: apt install ./trireme_*.deb;  tar --zstd -xf trireme-*.tar.zst -C PREFIX --strip-components=1
# In trireme-*-container: podman build -t trireme .  or  apptainer build trireme.sif trireme.def
set -euo pipefail
cd "$(dirname "$0")/.."

build=build
output=
while [ $# -gt 0 ]; do
  case $1 in
    --build | --output)
      [ $# -ge 2 ] || { echo "package: $1 needs a value" >&2; exit 64; }
      [ "$1" = --build ] && build=$2 || output=$2
      shift 2
      ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "package: $1 is not understood; see --help" >&2; exit 64 ;;
  esac
done
output=$(realpath -m "${output:-$build/packages}")
[ -x "$build/trireme" ] || { echo "package: there is no $build/trireme; build first (./scripts/setup.sh)" >&2; exit 66; }
for tool in cpack dpkg-deb dpkg-shlibdeps zstd; do
  command -v "$tool" >/dev/null || { echo "package: $tool is not installed (Debian, Ubuntu: apt install cmake dpkg-dev zstd)" >&2; exit 66; }
done

# "0.1.0 (1234567-modified)" is the version 0.1.0+g1234567.modified, which sorts behind 0.1.0.
read -r _ number revision <<< "$("$build/trireme" --version | head -n 1)"
revision=${revision//[()]/}
version=$number${revision:++g${revision//-/.}}

mkdir -p "$output"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$scratch" -D CPACK_PACKAGE_VERSION="$version" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 70; }
context=$scratch/trireme-$version-container
mkdir "$context"
scripts/bundle.sh --build "$build" --output "$context/trireme.tar.gz" >&2
cp scripts/package/Containerfile scripts/package/trireme.def "$context/"
rm -rf "$output/trireme-$version-container"
mv "$scratch"/*.deb "$scratch"/*.tar.zst "$context" "$output/"
for package in "$output"/trireme[_-]"$version"*; do
  echo "package: $package, $(du -sh "$package" | cut -f1)"
done
