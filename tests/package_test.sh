#!/usr/bin/env bash
# Installs the .deb on a bare Debian system, trains there, removes it again, and lints the recipes: package_test.sh BUILD. Exit code 77: cannot be tried here.
# Needs root, debootstrap and a package mirror.
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$(dirname "$0")/..")
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "skipped: needs root and debootstrap"; exit 77; }
scratch=$(mktemp -d)
root=$scratch/root
trap 'umount "$root/proc" "$root/dev" 2>/dev/null || true; rm -rf "$scratch"' EXIT

"$source/scripts/package.sh" --build "$build" --output "$scratch/packages"
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(grep -rhoE 'https?://[^ ]*debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -v security | head -n 1 | tr -d ' ' || true)
debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} > "$scratch/debootstrap.log" 2>&1 || { tail -n 5 "$scratch/debootstrap.log"; exit 77; }
cp /etc/apt/sources.list "$root/etc/apt/" 2>/dev/null || true
cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
cp /etc/resolv.conf /etc/hosts "$root/etc/" || true
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
files() { (cd "$root" && find etc opt srv usr -xdev | sort); }

inside apt-get update -qq
inside apt-get install -qq -y openmpi-bin man-db > "$scratch/apt.log" 2>&1 || { tail -n 5 "$scratch/apt.log"; exit 77; }
cp "$scratch"/packages/*.deb "$root/root/trireme.deb"
# Dependencies first, so that what is left after the removal is the package's own.
inside apt-get install -qq -y /root/trireme.deb > "$scratch/apt.log" 2>&1 || { tail -n 20 "$scratch/apt.log"; exit 1; }
inside dpkg --purge trireme > /dev/null
files > "$scratch/before"
inside apt-get install -qq -y /root/trireme.deb > /dev/null
inside trireme --version
inside sh -c 'MANWIDTH=100 man trireme-train | grep -q "resilience.restarts"'
inside sh -c 'mkdir -p /tmp/work && cd /tmp/work && for i in $(seq 400); do echo "Line $i of a text to train on."; done > text &&
  trireme data build --tokenizer bytes --output data text > /dev/null &&
  trireme train /usr/share/trireme/configs/quickstart.yaml --max-steps 3 --set "data.train=[data]" --set "data.validation=[]" --set training.evaluate.every=0 \
    --set training.sequence_length=32 || test $? = 75'
test "$(grep -c '"loss"' "$root/tmp/work/runs/quickstart/metrics.jsonl")" = 3
rm -rf "$root/tmp/work"
inside apt-get remove -qq -y --purge trireme > /dev/null
files > "$scratch/after"
left=$(comm -13 "$scratch/before" "$scratch/after" | grep -v -e '^etc/ld.so.cache' -e '/__pycache__' || true)
[ -z "$left" ] || { printf 'left behind:\n%s\n' "$left"; exit 1; }

mkdir "$scratch/prefix"
tar --zstd -xf "$scratch"/packages/*.tar.zst -C "$scratch/prefix" --strip-components=1
find "$scratch/prefix" -name trireme -path '*bin*' -exec {} --version \; | head -n 1
python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$source/scripts/package/spack/packages/trireme/package.py"
echo "package: installed on a bare $suite, trained, and removed without a trace"
