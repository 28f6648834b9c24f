#!/usr/bin/env bash
# Repeats a newcomer's first steps on other distributions: in each root directory, scripts/quickstart.sh on the committed sources (packages, compilation,
# training, a sample of text), then the resumption of its run.
#   sudo ./scripts/portability.sh ROOT...      a ROOT is made by: debootstrap --variant=minbase --components=main,universe noble ROOT
#   CXX=clang++ sudo -E ./scripts/portability.sh ROOT...   with clang, which is installed first
# One root takes some three minutes on two cores, once its packages are installed. Writes ROOT/src and, with all output, ROOT/portability.log. Exits 1 if a root fails.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] && [ "$1" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 64; }

first_steps='
  set -e
  cd /src
  case ${CXX:-} in *clang*)
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q clang libomp-dev ;;
  esac
  ./scripts/quickstart.sh --max-steps 20
  build/trireme train configs/quickstart.yaml --set run.directory=runs/quickstart-1 --max-steps 30
  build/trireme generate --checkpoint runs/quickstart-1 --prompt "She said" --max-tokens 20
  build/trireme --version'

# in_root ROOT: in a mount namespace of its own, so that nothing stays mounted.
in_root() {
  unshare --mount bash -c '
    set -e
    mount --bind /proc "$1/proc"
    for directory in dev sys; do mount --rbind "/$directory" "$1/$directory"; done
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ${CXX:+CXX="$CXX"} bash -c "$2"' - "$1" "$first_steps"
}

failed=0
for root in "$@"; do
  [ -x "$root/bin/bash" ] || { echo "portability: $root is not the root directory of a system" >&2; exit 66; }
  rm -rf "$root/src"
  mkdir "$root/src"
  git archive HEAD | tar -x -C "$root/src"
  cp /etc/resolv.conf "$root/etc/"
  system=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
  started=$SECONDS
  if in_root "$root" >"$root/portability.log" 2>&1; then
    echo "$system: trained and resumed in $((SECONDS - started)) s; $(grep -hE '^(build|MPI) ' "$root/portability.log" | tr -s ' \n' ' ')"
  else
    echo "$system: failed; the end of $root/portability.log:" >&2
    tail -n 15 "$root/portability.log" >&2
    failed=1
  fi
done
exit $failed
