#!/usr/bin/env bash
# Prepares English prose from Debian packages: OUT_DIR/train.txt and OUT_DIR/validation.txt, the last tenth of each book, held out.
# The novels of Jane Austen (4.0 MB), or the King James Bible (4.3 MB) where those cannot be had. Installs nothing; root is not needed.
#   usage: scripts/corpus.sh OUT_DIR
set -euo pipefail
if [ $# -ne 1 ]; then
  echo "usage: scripts/corpus.sh OUT_DIR" >&2
  exit 64
fi
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
if [ -s "$out/train.txt" ] && [ -s "$out/validation.txt" ]; then
  echo "corpus: $1 is ready"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# unpack PACKAGE...: into $work/root. The sandbox user of apt could not write to $work.
unpack() {
  local package
  for package in "$@"; do
    (cd "$work" && apt-get download -q -o APT::Sandbox::User=root "$package") >"$work/log" 2>&1 || return 1
    dpkg -x "$work/$package"_*.deb "$work/root" || return 1
  done
}

# The package lists of a fresh machine are empty.
update_lists() {
  local run=()
  [ "$(id -u)" -eq 0 ] || run=(sudo -n)
  "${run[@]}" apt-get update -q >"$work/log" 2>&1
}

austen() {
  local data=usr/lib/R/site-library/janeaustenr/data
  if [ -f "/$data/Rdata.rdx" ]; then
    data=/$data
  else
    unpack r-cran-janeaustenr || return 1
    data=$work/root/$data
  fi
  python3 "$scripts/extract_austen.py" "$data" "$work/books" || return 1
  source_name="the novels of Jane Austen"
}

bible() {
  local library
  unpack bible-kjv bible-kjv-text || return 1
  unpack libreadline8 || unpack libreadline8t64 || return 1
  library=$(dirname "$(find "$work/root" -name 'libreadline.so.8' | head -n 1)")
  LD_LIBRARY_PATH=$library "$work/root/usr/bin/bible" -f -p "$work/root/usr/lib" "gen1:1-rev22:21" </dev/null |
    sed "s/^[0-9A-Za-z]*:[0-9]* //" >"$work/books/bible.txt" || return 1  # without the verse numbers
  source_name="the King James Bible"
}

prepare() {
  rm -rf "$work/books" && mkdir "$work/books"
  "$1" && [ "$(cat "$work"/books/*.txt | wc -c)" -ge 1000000 ]
}

echo "corpus: fetching English prose from the Debian archive"
if ! prepare austen; then
  update_lists || true
  if ! prepare austen && ! prepare bible; then
    echo "corpus: neither r-cran-janeaustenr nor bible-kjv could be fetched with apt-get download; apt's last words:" >&2
    tail -n 5 "$work/log" >&2
    exit 74
  fi
fi

for book in "$work"/books/*.txt; do
  lines=$(wc -l <"$book")
  head -n $((lines * 9 / 10)) "$book" >>"$work/train.txt"
  tail -n +$((lines * 9 / 10 + 1)) "$book" >>"$work/validation.txt"
done
# Validation first: both files are there only when both are whole.
mv "$work/validation.txt" "$out/validation.txt.partial" && mv "$out/validation.txt.partial" "$out/validation.txt"
mv "$work/train.txt" "$out/train.txt.partial" && mv "$out/train.txt.partial" "$out/train.txt"
echo "corpus: $source_name: $(wc -c <"$out/train.txt") bytes in $1/train.txt, $(wc -c <"$out/validation.txt") in $1/validation.txt"
