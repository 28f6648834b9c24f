#!/usr/bin/env python3
"""Plants the bugs of tests/mutations/ in a copy of the tree, for scripts/mutations.sh.

  scripts/plant.py --list [--slice K/N] [WORD...]    names of all bugs, or of those whose name contains one of the words; of these every N-th from the K-th
  scripts/plant.py --table [--slice K/N] [WORD...]   the same with changed files, trap, verify and caught_by, separated by tabs
  scripts/plant.py --check                           does each bug apply to this tree exactly once, and does its caught_by exist?
  scripts/plant.py --plant NAME DIR                  plants a bug in the tree DIR; DIR/.planted keeps the files as they were
  scripts/plant.py --take-back NAME DIR              puts those files back
  scripts/plant.py --learn RESULTS                   writes caught_by of every bug that a results file of scripts/mutations.sh holds into its table

A bug is an entry of a table, tests/mutations/MODULE.txt:

  [12-mean-of-means]                    a number, which orders the bugs, and a name
  trap: the loss is a mean of means     the mistake
  verify: data loss                     optional: axis and kind of layer that `trireme verify` must name, or "- REASON" where verify cannot see the bug
  note: Each rank divides by its own.   optional: how the bug makes this mistake
  caught_by: parity/loss_test.cpp       optional: a file below tests/ with a test that is known to fail; mutations.sh runs its tests first
  file: trainer/loop/step.cpp
  find:
      whole lines of the file, indented by four more spaces; they must occur exactly once in the file
  replace:
      the lines that take their place; none if the bug deletes the lines

More pairs of find and replace may follow, and more files with their pairs. Each find is looked up in the original file. Keep it as short as is unique, so
that other edits of the file do not touch it. An empty line within a block is an empty line; empty lines at its end do not count. Lines that begin with # are
comments. A caught_by names a file in place of a test because tests are renamed more often than files.

What such pairs cannot express is a unified diff, tests/mutations/NAME.patch, headed by "# TRAP" and, if wanted, "# verify: ...", "# caught_by: ..." and
"# NOTE".
Exits 1 with the reason if anything is wrong.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUGS = ROOT / "tests" / "mutations"
KEPT = ".planted"
TEST_FILE = r"\w+/\w+\.cpp"


class Error(Exception):
    pass


class Pair:
    def __init__(self, file):
        self.file, self.find, self.replace = file, [], None


class TableBug:
    """An entry of a table: pairs of lines to find and lines to replace them by."""

    def __init__(self, name):
        self.name, self.fields, self.file, self.pairs = name, {}, None, []

    def files(self):
        return list(dict.fromkeys(pair.file for pair in self.pairs))

    def validate(self):
        if not self.fields.get("trap"):
            raise Error(f"{self.name}: no trap")
        if not self.pairs:
            raise Error(f"{self.name}: nothing to replace")
        for pair in self.pairs:
            problem = ("nothing to find" if not pair.find else "a find without its replace" if pair.replace is None else
                       "replaces lines by themselves" if pair.find == pair.replace else None)
            if problem:
                raise Error(f"{self.name}: {pair.file}: {problem}")

    def changed(self, tree):
        """The bytes of each changed file with the bug in it."""
        return {file: self.changed_file(tree, file) for file in self.files()}

    def changed_file(self, tree, file):
        if not (tree / file).is_file():
            raise Error(f"{self.name}: {file}: no such file")
        lines = (tree / file).read_bytes().decode().split("\n")
        places = sorted((self.place(lines, pair), pair.find, pair.replace) for pair in self.pairs if pair.file == file)
        for (begin, find, _), (following, _, _) in zip(places, places[1:]):
            if begin + len(find) > following:
                raise Error(f"{self.name}: {file}: two pairs overlap")
        for begin, find, replace in reversed(places):
            lines[begin:begin + len(find)] = replace
        return "\n".join(lines).encode()

    def place(self, lines, pair):
        size = len(pair.find)
        found = [i for i in range(len(lines) - size + 1) if lines[i:i + size] == pair.find]
        if len(found) != 1:
            raise Error(f"{self.name}: {pair.file}: the lines to find occur {len(found)} times, not once: {pair.find[0].strip()}")
        return found[0]

    def check(self, tree):
        self.changed(tree)

    def write(self, tree):
        for file, content in self.changed(tree).items():
            (tree / file).write_bytes(content)


class PatchBug:
    """A unified diff."""

    def __init__(self, path):
        self.name, self.path = path.stem, path
        self.text = path.read_text()
        head = [line[2:] for line in self.text.split("\n") if line.startswith("# ")]
        self.fields = {"trap": head[0] if head else ""}
        self.fields.update(line.split(": ", 1) for line in head if line.startswith(("verify: ", "caught_by: ")))

    def files(self):
        return list(dict.fromkeys(re.findall(r"^(?:---|\+\+\+) [ab]/(\S+)", self.text, re.MULTILINE)))

    def validate(self):
        if not self.fields["trap"]:
            raise Error(f"{self.name}: no trap")

    def apply(self, tree, *options):
        # Inside of another repository, git would leave out files that are not below its root.
        environment = dict(os.environ, GIT_CEILING_DIRECTORIES=str(tree.resolve().parent))
        result = subprocess.run(["git", "apply", *options, str(self.path)], cwd=tree, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            raise Error(f"{self.name}: {result.stderr.strip()}")

    def check(self, tree):
        self.apply(tree, "--check")

    def write(self, tree):
        self.apply(tree)


def read_line(bug, line):
    """Reads one line outside of the blocks; returns the block that it opens, if any."""
    key, colon, value = line.partition(":")
    value = value.strip()
    if not colon or key not in ("trap", "verify", "note", "caught_by", "file", "find", "replace"):
        raise Error(f"unknown line: {line}")
    if key == "file":
        bug.file = value
    elif key in ("find", "replace"):
        if value:
            raise Error(f"{key} takes its lines from below")
        if key == "find":
            if not bug.file:
                raise Error("find needs a file above it")
            bug.pairs.append(Pair(bug.file))
            return bug.pairs[-1].find
        if not bug.pairs or bug.pairs[-1].replace is not None:
            raise Error("replace needs a find above it")
        bug.pairs[-1].replace = []
        return bug.pairs[-1].replace
    elif key in bug.fields:
        raise Error(f"{key} is there twice")
    else:
        bug.fields[key] = value
    return None


def read_table(path):
    bugs, block = [], None
    for number, line in enumerate(path.read_bytes().decode().split("\n"), 1):
        if block is not None and (line.startswith("    ") or not line):
            block.append(line[4:])
            continue
        block = None
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                name = re.fullmatch(r"\[(\d+-[\w-]+)\]\s*", line)
                if not name:
                    raise Error("a bug needs a name like [12-what-is-wrong]")
                bugs.append(TableBug(name[1]))
            elif not bugs:
                raise Error("a bug begins with its [name]")
            else:
                block = read_line(bugs[-1], line)
        except Error as error:
            raise Error(f"{path.name}:{number}: {error}") from None
    for pair in (pair for bug in bugs for pair in bug.pairs):
        for lines in (pair.find, pair.replace or []):
            while lines and not lines[-1]:
                lines.pop()
    return bugs


def read_bugs():
    """All bugs by name, in the order of their numbers."""
    bugs = [bug for path in sorted(BUGS.glob("*.txt")) for bug in read_table(path)] + [PatchBug(path) for path in BUGS.glob("*.patch")]
    by_name = {}
    for bug in sorted(bugs, key=lambda bug: (int(re.match(r"\d*", bug.name)[0] or 0), bug.name)):
        if bug.name in by_name:
            raise Error(f"{bug.name} is there twice")
        bug.validate()
        by_name[bug.name] = bug
    return by_name


def select(bugs, words, part):
    chosen = [bug for bug in bugs.values() if not words or any(word in bug.name for word in words)]
    if part is None:
        return chosen
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise Error(f"--slice needs K/N with 1 <= K <= N, not {part}")
    return chosen[int(match[1]) - 1::int(match[2])]


def check_caught_by(bug):
    """The folder is that of a test program; its tests are found by the name of their file."""
    file = bug.fields.get("caught_by")
    if file is None:
        return
    if not re.fullmatch(TEST_FILE, file):
        raise Error(f"{bug.name}: caught_by needs a file like unit/sum_test.cpp, not {file}")
    if not (ROOT / "tests" / file).is_file():
        raise Error(f"{bug.name}: caught_by: tests/{file}: no such file")


def check(bugs):
    errors = []
    for bug in bugs.values():
        try:
            bug.check(ROOT)
            check_caught_by(bug)
        except Error as error:
            errors.append(str(error))
    if errors:
        raise Error("\n".join(errors))


def learn(bugs, results):
    """Rows without a test's file, and those that ran too long, teach nothing."""
    learned = {}
    for line in results.read_text().splitlines():
        row = re.fullmatch(rf"\| (\d+-[\w-]+) \| .* \| ({TEST_FILE}): ([^|]+) \| yes \|", line)
        if row and row[1] in bugs and not row[3].endswith(" (ran too long)"):
            learned[row[1]] = f"caught_by: {row[2]}"
    for path in sorted(BUGS.glob("*.txt")):
        lines, name = [], None
        for line in path.read_text().split("\n"):
            if line.startswith("["):
                name = line.strip()[1:-1]
            elif name in learned and line.startswith("caught_by:"):
                continue
            elif name in learned and line.startswith("file:"):
                lines.append(learned.pop(name))
            lines.append(line)
        path.write_text("\n".join(lines))
    for path in BUGS.glob("*.patch"):
        if path.stem in learned:
            trap, *rest = path.read_text().split("\n")
            path.write_text("\n".join([trap, f"# {learned[path.stem]}"] + [line for line in rest if not line.startswith("# caught_by:")]))


def plant(bug, tree):
    kept = tree / KEPT
    if kept.exists():
        raise Error(f"{', '.join(path.name for path in kept.iterdir())} is still planted in {tree}")
    bug.check(tree)
    for file in bug.files():
        (kept / bug.name / file).parent.mkdir(parents=True, exist_ok=True)
        if (tree / file).exists():
            shutil.copyfile(tree / file, kept / bug.name / file)
    bug.write(tree)


def take_back(bug, tree):
    """The files get the time of now, so that a build compiles them again."""
    kept = tree / KEPT / bug.name
    if not kept.exists():
        raise Error(f"{bug.name} is not planted in {tree}")
    for file in bug.files():
        if (kept / file).exists():
            shutil.copyfile(kept / file, tree / file)
        else:
            (tree / file).unlink(missing_ok=True)
    shutil.rmtree(tree / KEPT)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true")
    action.add_argument("--table", action="store_true")
    action.add_argument("--check", action="store_true")
    action.add_argument("--plant", nargs=2, metavar=("NAME", "DIR"))
    action.add_argument("--take-back", nargs=2, metavar=("NAME", "DIR"))
    action.add_argument("--learn", metavar="RESULTS")
    parser.add_argument("--slice", metavar="K/N")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args(arguments)
    try:
        bugs = read_bugs()
        if options.check:
            check(bugs)
        elif options.list or options.table:
            for bug in select(bugs, options.words, options.slice):
                row = (bug.name, " ".join(bug.files()), bug.fields["trap"], bug.fields.get("verify", ""), bug.fields.get("caught_by", ""))
                print(bug.name if options.list else "\t".join(row))
        elif options.learn:
            learn(bugs, pathlib.Path(options.learn))
        else:
            name, tree = options.plant or options.take_back
            if name not in bugs:
                raise Error(f"no bug is called {name}")
            (plant if options.plant else take_back)(bugs[name], pathlib.Path(tree))
    except Error as error:
        print(f"plant: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
