#!/usr/bin/env bash
# Checks style: formatting, words, links, and with --tidy defects that clang-tidy knows. The default suite runs it without --tidy.
#   ./scripts/lint.sh [--tidy] [FILE...]     --tidy: the given sources, or all of them (half an hour on two cores)
# Formatting is that of clang-format 14, as other versions break lines elsewhere; without it that part is skipped and said so.
# Exits 1 with a line for each finding.
set -euo pipefail
cd "$(dirname "$0")/.."

tidy=
if [ "${1:-}" = --tidy ]; then tidy=yes; shift; fi
found=0
complain() { echo "lint: $1" >&2; found=1; }

mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done)
if [ $# -gt 0 ]; then sources=("$@"); fi

format=
for program in clang-format-14 clang-format; do
  if command -v "$program" >/dev/null && "$program" --version | grep -q 'version 14\.'; then format=$program; break; fi
done
if [ -n "$format" ]; then
  while read -r file; do complain "$file: not formatted; run $format -i $file"; done < <(
    printf '%s\n' "${sources[@]}" | xargs -n 32 -P "$(nproc)" "$format" --dry-run -Werror 2>&1 | sed -n 's/^\([^: ]*\):[0-9].*\[-Wclang-format-violations\]$/\1/p' | sort -u)
else
  echo "lint: clang-format 14 is not installed; formatting is not checked" >&2
fi

# Words that the project has given up (docs/concepts.md has the ones it uses): a pattern a line, matched in sources, scripts and documents.
while read -r finding; do complain "$finding"; done < <(
  git grep -nIEi --untracked -f scripts/lint-words.txt -- kernels parallel trainer tests scripts docs configs '*.md' ':!scripts/lint-words.txt' ':!CHANGELOG.md' | cut -c1-180)

# A comment is a sentence or a noun: one that begins with "Of" leaves its noun to the reader.
while read -r finding; do complain "$finding: begins with \"Of\""; done < <(
  git grep -nIE --untracked '(//+<?|#) Of ' -- kernels parallel trainer tests scripts | cut -c1-180)

# The raw text of a standard exception ("stoi") must not reach a user: printable(error) words it.
while read -r finding; do complain "$finding"; done < <(python3 - <<'PYTHON'
import pathlib, re
for file in sorted(pathlib.Path("trainer").rglob("*.cpp")):
    if file.name == "printable.cpp": continue
    text = file.read_text()
    for caught in re.finditer(r"^( *)\}? ?catch \(const std::exception& (\w+)\) \{.*?^\1\}", text, re.S | re.M):
        if re.search(rf"\b{caught[2]}\.what\(\)", caught[0]):
            print(f"{file}:{text.count(chr(10), 0, caught.start()) + 1}: {caught[2]}.what() of a std::exception; use printable({caught[2]})")
PYTHON
)

# The newest release: that of CMakeLists.txt, and short enough to be read.
release=$(sed -n 's/^project(trireme VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
newest=$(awk '/^## /{inside = !/^## Unreleased/ && !n++} inside' CHANGELOG.md)
[[ $newest == "## $release "* ]] || complain "CHANGELOG.md: its first release is not $release"
[[ $(wc -l <<< "$newest") -le 40 ]] || complain "CHANGELOG.md: release $release has more than 40 lines"

# Relative links of documents, and their headings.
while read -r finding; do complain "$finding"; done < <(python3 - <<'PYTHON'
import pathlib, re, subprocess
files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], capture_output=True, text=True).stdout.split()
def anchors(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
for file in map(pathlib.Path, files):
    if not file.exists(): continue
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target): continue
        path, _, anchor = target.partition("#")
        other = (file.parent / path) if path else file
        if not other.exists(): print(f"{file}: broken link {target}")
        elif anchor and other.suffix == ".md" and anchor not in anchors(other): print(f"{file}: no heading for {target}")
PYTHON
)

if [ -n "$tidy" ]; then
  # A build directory of its own, where each source is compiled by itself, as setup.sh builds a module as one file. Nothing is compiled there.
  cmake -S . -B build/tidy -G Ninja -DTRIREME_UNITY=OFF > build/tidy.log 2>&1 && cmake --build build/tidy --target trireme_version >> build/tidy.log 2>&1 ||
    { cat build/tidy.log >&2; echo "lint: the tree cannot be configured; run ./scripts/setup.sh --tests first" >&2; exit 66; }
  mapfile -t compiled < <(printf '%s\n' "${sources[@]}" | grep '\.cpp$' | while read -r file; do ! grep -qF "/$file\"" build/tidy/compile_commands.json || echo "$file"; done)
  [ ${#compiled[@]} -gt 0 ] || { echo "lint: none of the given files is a source of this build" >&2; exit 64; }
  printf '%s\n' "${compiled[@]}" | xargs -n 1 -P "$(nproc)" clang-tidy -p build/tidy --quiet 2>/dev/null | grep -E '(warning|error):' | sort -u >&2 && found=1
fi
exit $found
