#!/usr/bin/env python3
"""Generates bugs from the sources, plants them one at a time, and reports which of them no test notices. The bugs that people wrote are in tests/mutations/.

  scripts/mutate.py --list                        all sites, then their number by module and operator
  scripts/mutate.py --count                       only these numbers
  scripts/mutate.py --show ID                     the bug as a diff
  scripts/mutate.py --plant ID DIR                plants it in the tree DIR; DIR/.planted keeps the file as it was
  scripts/mutate.py --take-back ID DIR            puts that file back
  scripts/mutate.py --sample N [--seed S]         draws N sites, as many from each module; the same seed draws the same
  scripts/mutate.py --run --results FILE [ID...]  plants the given sites, or with --sample N those drawn, builds, and runs the tests of their module
  scripts/mutate.py --report FILE                 the share of bugs that were caught, and the survivors with their diffs

--module FOLDER and --operator NAME restrict --list, --count and --sample: kernels, trainer/plan; wait, compare, term, bound, index, condition.

An id is made of the operator and a hash of the file, the function, the text of the site and, among equal texts of the function, its number. It stays the same
while other lines change. --run writes a line of JSON per bug: "caught" with the first test that failed; "ran too long", which counts as caught, for three times
as long as without a bug and a minute, or --limit SECONDS; "survived"; "not built"; or "no change" if the compiler made the same programs of it. A later run of
the same commit with the same file continues it.

--program test_parallel runs only this one of the module's programs, for a first look; a later run without it shows the survivors to the others. --run copies the
tree and builds it first; with --tree DIR it plants the bugs in the tree DIR instead, which has a build in DIR/build, and takes them back.
Exits 1 with the reason if anything is wrong. A survivor is no error: some bugs change nothing that can be seen.
"""
import argparse
import collections
import difflib
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.sax.saxutils

sys.dont_write_bytecode = True
import mutation_operators  # noqa: E402
import plant  # noqa: E402
from plant import Error  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("kernels", "parallel", "trainer")
SUFFIXES = (".cpp", ".h", ".cu", ".cuh")
CAUGHT = ("caught", "ran too long")
LARGEST_FILE = 8 << 30
PATIENCE, SPARE_SECONDS = 3, 60


class Mutant:
    """A site in the shape that plant.plant takes."""

    def __init__(self, site):
        self.site, self.name = site, site.id

    def files(self):
        return [self.site.file]

    def changed(self, tree):
        path = tree / self.site.file
        text = path.read_bytes().decode() if path.is_file() else ""
        site = next((site for site in mutation_operators.find_sites(self.site.file, text) if site.id == self.name), None)
        if site is None:
            raise Error(f"{self.name}: {self.site.file} in {tree} has no such site")
        return text, site.apply(text)

    def check(self, tree):
        self.changed(tree)

    def write(self, tree):
        (tree / self.site.file).write_bytes(self.changed(tree)[1].encode())

    def diff(self, tree):
        old, new = (text.splitlines(keepends=True) for text in self.changed(tree))
        return "".join(difflib.unified_diff(old, new, f"a/{self.site.file}", f"b/{self.site.file}"))


class Planted:
    """A bug that is in a tree, by the files that were kept. Its site cannot be found there any more."""

    def __init__(self, name, tree):
        self.name, self.kept = name, tree / plant.KEPT / name

    def files(self):
        return [str(path.relative_to(self.kept)) for path in self.kept.rglob("*") if path.is_file()]


def source_files(root, module=""):
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(file for file in (path.relative_to(root).as_posix() for path in found) if not module or file.startswith(module.rstrip("/") + "/"))


def all_sites(root, module="", operator=""):
    """By id, in the order of files and lines."""
    sites = {}
    for file in source_files(root, module):
        for site in mutation_operators.find_sites(file, (root / file).read_bytes().decode()):
            if site.id in sites:
                raise Error(f"{site.id} is there twice: {sites[site.id].file}:{sites[site.id].line} and {file}:{site.line}")
            if not operator or site.operator == operator:
                sites[site.id] = site
    if not sites:
        raise Error(f"no site of {operator or 'any operator'} in {module or 'the tree'}")
    return sites


def chosen(sites, ids):
    for id_ in ids:
        if id_ not in sites:
            raise Error(f"no site has the id {id_}")
    return [sites[id_] for id_ in ids]


def sample(sites, number, seed):
    """As many of each module as there are. The order within a module depends on each site and the seed alone, so a new site moves few others."""
    def place(text):
        return hashlib.sha256(f"{seed} {text}".encode()).digest()

    modules = collections.defaultdict(list)
    for site in sites.values():
        modules[site.module()].append(site)
    for members in modules.values():
        members.sort(key=lambda site: place(site.id))
    drawn = []
    for turn in range(max(map(len, modules.values()))):
        for module in sorted(modules, key=place):
            if turn < len(modules[module]) and len(drawn) < number:
                drawn.append(modules[module][turn])
    return drawn


def print_counts(sites):
    counts = collections.Counter((site.module(), site.operator) for site in sites)
    operators = list(mutation_operators.OPERATORS)

    def row(name, cells):
        print(f"| {name} | " + " | ".join(str(cell) for cell in cells) + f" | {sum(cells)} |")

    print("| module | " + " | ".join(operators) + " | all |")
    print("|---|" + "---|" * (len(operators) + 1))
    for module in sorted({module for module, _ in counts}):
        row(module, [counts[module, operator] for operator in operators])
    row("all", [sum(count for (_, of), count in counts.items() if of == operator) for operator in operators])


def programs_for(file):
    """The programs that test a file, in the order in which they probably notice a change of it."""
    if file.startswith("kernels/cuda/"):
        return ["test_kernels", "test_trace", "test_cuda"] if file.endswith((".cu", ".cuh")) else ["test_cuda", "test_kernels"]
    if file.startswith("kernels/"):
        return ["test_kernels"]
    if file.startswith("parallel/"):
        return ["test_parallel", "test_parity"]
    if file.startswith("trainer/plan/"):
        return ["test_plan"]
    return ["test_unit", "test_parity"]


def copy_tree(root, tree):
    """What git tracks or would track. Only test_e2e starts the product itself, so the other tests need not wait for its GPU code."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, check=True, capture_output=True, text=True)
    for file in filter(None, listed.stdout.split("\0")):
        if (root / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, tree / file)
    lists = tree / "tests" / "CMakeLists.txt"
    lists.write_text(re.sub(r"^.*add_dependencies\(test_.* trireme\).*\n", "", lists.read_text(), flags=re.M))


def bound_memory():
    """A loop that a bug makes endless must fill neither the memory of this machine nor its disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for resource_, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, LARGEST_FILE)):
        resource.setrlimit(resource_, (most, resource.getrlimit(resource_)[1]))


def run_command(command, limit, output, environment=None, before=None):
    """The exit status, or None if it ran too long. Ends the processes that the command has started, too."""
    with open(output, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True, preexec_fn=before)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Workplace:
    """A tree with its build."""

    def __init__(self, tree, build, scratch):
        self.tree, self.folder, self.log, self.xml = tree, build, scratch / "log", scratch / "xml"
        self.originals, self.limits = {}, {}  # by program: its digest without a bug, and the seconds that it may take

    def log_end(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def configure(self):
        if run_command(["cmake", "-S", self.tree, "-B", self.folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTRIREME_TESTS=ON"], None, self.log) != 0:
            raise Error(f"the tree cannot be configured\n{self.log_end()}")

    def build(self, program):
        return run_command(["nice", "cmake", "--build", self.folder, "--target", program], None, self.log) == 0

    def first_failure(self, program):
        """The outcome of a program, and the test that failed or did not end."""
        self.xml.unlink(missing_ok=True)
        command = [self.folder / "tests" / program, "~[slow]", "--abort", "--reporter", "xml", "--out", self.xml]
        status = run_command(command, self.limits[program], self.log, dict(os.environ, OMP_WAIT_POLICY="passive"), bound_memory)
        if status == 0:
            return "survived", None
        return "ran too long" if status is None else "caught", f"{program.removeprefix('test_')}: {self.last_test()}"

    def last_test(self):
        tests = re.findall(r'<TestCase name="([^"]*)"', self.xml.read_text(errors="replace") if self.xml.exists() else "")
        return xml.sax.saxutils.unescape(tests[-1], {"&quot;": '"', "&apos;": "'"}) if tests else "before its first test"

    def digest(self, program):
        return hashlib.sha256((self.folder / "tests" / program).read_bytes()).digest()

    def try_mutant(self, mutant, programs, result):
        """result: what programs that were run before have found."""
        plant.plant(mutant, self.tree)
        try:
            for program in programs:
                if not self.build(program):
                    return "not built", None
                if self.digest(program) == self.originals[program]:
                    continue
                result, test = self.first_failure(program)
                if result in CAUGHT:
                    return result, test
            return result, None
        finally:
            plant.take_back(mutant, self.tree)


def commit_of(root):
    result = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def read_results(path):
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError as error:
        raise Error(f"{path} is no results file: {error}") from None


class Results:
    """A file of results, of which only the rows of this commit count here."""

    def __init__(self, path, commit):
        self.path, self.commit = path, commit
        self.rows = {(row["id"], row["test"] if row["id"] == "nothing" else ""): row for row in read_results(path) if row["commit"] == commit}
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **row):
        with open(self.path, "a") as file:
            file.write(json.dumps(dict(commit=self.commit, **row)) + "\n")

    def seconds(self, program):
        """The time that a program takes without a bug, if it is known."""
        row = self.rows.get(("nothing", program))
        return row and row["seconds"]

    def left(self, site, programs):
        """The programs that have not judged this bug, and what others have found."""
        row = self.rows.get((site.id, ""), dict(outcome="no change", programs=[]))
        if row["outcome"] not in ("survived", "no change"):
            return [], row["outcome"]
        return [program for program in programs if program not in row["programs"]], row["outcome"]


def test_original(place, program, results, most):
    """Nothing can be learned from a program that fails without a bug."""
    if not place.build(program):
        raise Error(f"the tree does not build\n{place.log_end()}")
    place.originals[program], place.limits[program] = place.digest(program), most
    seconds, begin = results.seconds(program), time.monotonic()
    if seconds is None:
        outcome, test = place.first_failure(program)
        if outcome != "survived":
            raise Error(f"the tree fails without any bug planted: {test}{' ran too long' if outcome != 'caught' else ''}")
        seconds = round(time.monotonic() - begin, 1)
        results.write(id="nothing", outcome="passed", test=program, seconds=seconds)
    place.limits[program] = min(most, PATIENCE * seconds + SPARE_SECONDS)


def run(root, in_place, sites, options):
    results = Results(options.results, commit_of(root))
    programs = {site.id: [program for program in programs_for(site.file) if not options.program or program in options.program] for site in sites}
    left = [(site, *results.left(site, programs[site.id])) for site in sites]
    left = [(site, to_run, outcome) for site, to_run, outcome in left if to_run]
    if not left:
        return
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        if in_place:
            place = Workplace(root, root / "build", scratch)
        else:
            os.environ.update(CCACHE_BASEDIR=str(scratch), CCACHE_NOHASHDIR="1")  # so that another run finds what this one compiled
            place = Workplace(scratch / "tree", scratch / "build", scratch)
            copy_tree(root, place.tree)
            place.configure()
        if not (place.folder / "tests/CMakeFiles/test_cuda.dir").is_dir() and any(site.file.startswith("kernels/cuda/") for site, _, _ in left):
            print("mutate: the sites of kernels/cuda are skipped: no CUDA toolkit here", file=sys.stderr)
            left = [entry for entry in left if not entry[0].file.startswith("kernels/cuda/")]
        for program in sorted({program for _, to_run, _ in left for program in to_run}):
            test_original(place, program, results, options.limit)
        for site, to_run, outcome in left:
            mutant, begin = Mutant(site), time.monotonic()
            diff = mutant.diff(place.tree)
            outcome, test = place.try_mutant(mutant, to_run, outcome)
            seconds = round(time.monotonic() - begin, 1)
            results.write(id=site.id, module=site.module(), operator=site.operator, file=site.file, line=site.line, function=site.function, outcome=outcome,
                          test=test, programs=programs[site.id], seconds=seconds, diff=diff)
            print(f"{site.id} {site.file}:{site.line} {outcome}{f' ({test})' if test else ''}, {seconds:.0f} s", flush=True)


def report(path):
    rows = {row["id"]: row for row in read_results(path) if row["id"] != "nothing"}  # the last row of each bug
    if not rows:
        raise Error(f"{path} has no results")
    rows = list(rows.values())
    commits = sorted({row["commit"] for row in rows})
    print(f"{len(rows)} generated bugs, commit {', '.join(commits)}, {sum(row['seconds'] for row in rows) / len(rows):.0f} s each\n")
    for key in ("module", "operator"):
        print(f"| {key} | planted | caught | ran too long | survived | share caught | not built | no change |\n|" + "---|" * 8)
        for name in sorted({row[key] for row in rows}) + ["all"]:
            counts = collections.Counter(row["outcome"] for row in rows if name == "all" or row[key] == name)
            caught = sum(counts[outcome] for outcome in CAUGHT)
            judged = caught + counts["survived"]
            share = f"{100 * caught / judged:.0f}%" if judged else "-"
            print(f"| {name} | {sum(counts.values())} | {counts['caught']} | {counts['ran too long']} | {counts['survived']} | {share} | {counts['not built']} "
                  f"| {counts['no change']} |")
        print()
    for row in rows:
        if row["outcome"] == "survived":
            print(f"{row['id']} survived {', '.join(row['programs'])}: {row['file']}:{row['line']}, {row['function']}\n\n{row['diff']}")


def change_of(root, site):
    """The line of the site before and after, for lists."""
    text = (root / site.file).read_bytes().decode()
    changed = site.apply(text)
    begin = text.rfind("\n", 0, site.edit.begin) + 1
    end = text.find("\n", max(begin, site.edit.end - 1))
    old, new = (" ".join(line.split()) for line in (text[begin:end], changed[begin:end + len(changed) - len(text)]))
    return f"{old} -> {new or 'nothing'}"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for action in ("list", "count", "run"):
        parser.add_argument(f"--{action}", action="store_true")
    parser.add_argument("--show", metavar="ID")
    parser.add_argument("--plant", nargs=2, metavar=("ID", "DIR"))
    parser.add_argument("--take-back", nargs=2, metavar=("ID", "DIR"))
    parser.add_argument("--report", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--sample", metavar="N", type=int)
    parser.add_argument("--seed", metavar="S", default="0")
    parser.add_argument("--module", metavar="FOLDER", default="")
    parser.add_argument("--operator", choices=mutation_operators.OPERATORS, default="")
    parser.add_argument("--results", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--tree", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--program", metavar="NAME", action="append")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=7200)
    parser.add_argument("ids", nargs="*", metavar="ID")
    options = parser.parse_args(arguments)
    actions = [name for name in ("list", "count", "show", "plant", "take_back", "run", "report") if getattr(options, name)]
    if len(actions) > 1 or not actions and options.sample is None:
        parser.error("give one of --list, --count, --show, --plant, --take-back, --sample, --run and --report")
    if options.run and (options.results is None or (options.sample is None) == (not options.ids)):
        parser.error("--run needs --results FILE, and either --sample N or ids")
    if options.sample is not None and options.sample < 1:
        parser.error("--sample needs a number of at least 1")
    return options


def act(options):
    root = (options.tree or ROOT).resolve()
    if options.report:
        report(options.report)
    elif options.take_back:
        name, tree = options.take_back[0], pathlib.Path(options.take_back[1])
        plant.take_back(Planted(name, tree), tree)
    elif options.plant:
        plant.plant(Mutant(chosen(all_sites(root), [options.plant[0]])[0]), pathlib.Path(options.plant[1]))
    elif options.show:
        print(Mutant(chosen(all_sites(root), [options.show])[0]).diff(root), end="")
    else:
        sites = all_sites(root, options.module, options.operator)
        if options.sample is not None:
            selected = sample(sites, options.sample, options.seed)
        else:
            selected = chosen(sites, options.ids) if options.ids else list(sites.values())
        if options.run:
            run(root, options.tree is not None, selected, options)
            return
        for site in [] if options.count else selected:
            print(f"{site.id} {site.file}:{site.line} {site.function}: {change_of(root, site)}")
        if options.sample is None:
            print_counts(selected)


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the bug is taken back
    try:
        act(options)
    except Error as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
