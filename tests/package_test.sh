#!/usr/bin/env bash
# Installs the .deb on a bare Debian system, trains there, and removes it again: package_test.sh BUILD. Exit code 77: cannot be tried here.
# Needs root, debootstrap and a package mirror.
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$(dirname "$0")/..")
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "skipped: needs root and debootstrap"; exit 77; }
scratch=$(mktemp -d)
root=$scratch/root
# Nothing is removed while anything is mounted there.
clean_up() {
  umount "$root/proc" 2>/dev/null || true
  if grep -qF " $scratch/" /proc/mounts; then echo "package: $scratch is left, because something is mounted in it" >&2; return; fi
  rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT

"$source/scripts/package.sh" --build "$build" --output "$scratch/packages"
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(grep -rhoE 'https?://[^ ]*debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -v security | head -n 1 | tr -d ' ' || true)
debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} > "$scratch/debootstrap.log" 2>&1 || { tail -n 5 "$scratch/debootstrap.log"; exit 77; }
cp /etc/apt/sources.list "$root/etc/apt/" 2>/dev/null || true
cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
cp /etc/resolv.conf /etc/hosts "$root/etc/" || true
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm"
for device in null:3 zero:5 random:8 urandom:9; do
  [ -e "$root/dev/${device%:*}" ] || mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"
done
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
files() { (cd "$root" && find . -xdev -not -path './proc/*' -not -path './dev/*' -not -path './tmp/*' -not -path './run/*' -not -path './root/*' | sort); }

inside apt-get update -qq
cp "$scratch"/packages/*.deb "$root/root/trireme.deb"
# Dependencies first, so that what the package leaves behind can be seen.
read -ra needed <<< "$(dpkg-deb -f "$root/root/trireme.deb" Depends | sed 's/([^)]*)//g; s/|[^,]*//g; s/,/ /g')"
inside apt-get install -qq -y "${needed[@]}" man-db > "$scratch/apt.log" 2>&1 || { tail -n 5 "$scratch/apt.log"; exit 77; }
files > "$scratch/before"
inside apt-get install -qq -y /root/trireme.deb > /dev/null
inside trireme --version
inside sh -c 'MANWIDTH=100 man trireme-train > /tmp/page 2>&1; grep -q "resilience.restarts" /tmp/page || { head -n 5 /tmp/page; exit 1; }'
inside sh -c 'mkdir -p /tmp/work && cd /tmp/work && for i in $(seq 400); do echo "Line $i of a text to train on."; done > text &&
  trireme data build --tokenizer bytes --output data text > /dev/null &&
  trireme train /usr/share/trireme/configs/quickstart.yaml --max-steps 3 --set "data.train=[data]" --set "data.validation=[]" --set training.evaluate.every=0 --set training.evaluate.batches=0 \
    --set training.sequence_length=32 || test $? = 75'
test "$(grep -c '"loss"' "$root/tmp/work/runs/quickstart/metrics.jsonl")" = 3
rm -rf "$root/tmp/work"
inside apt-get remove -qq -y --purge trireme > /dev/null
files > "$scratch/after"
left=$(comm -13 "$scratch/before" "$scratch/after" | grep -v -e '^\./var/\(cache\|lib/apt\|lib/dpkg\|log\)' || true)
[ -z "$left" ] || { printf 'left behind:\n%s\n' "$left"; exit 1; }

mkdir "$scratch/prefix"
tar --zstd -xf "$scratch"/packages/*.tar.zst -C "$scratch/prefix" --strip-components=1
program=$(find "$scratch/prefix" -type f -path '*/bin/trireme')
"$program" --version > /dev/null
python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$source/scripts/package/spack/packages/trireme/package.py"
echo "package: installed on a bare $suite, trained, and removed without a trace"
