#!/usr/bin/env python3
"""Runs the commands behind the project's claims on one release and writes docs/proof.md from what they printed, so that no figure is typed by hand.

  scripts/proof.py --list                    the claims, and which of them have been run on the release
  scripts/proof.py --release                 begins the page of a release, of which nothing has been run yet: of this commit, or with changes, of the one to come
  scripts/proof.py [--tree DIR] [ID...]      runs those whose id contains one of the words (default: all that take minutes), writes docs/proof.json and docs/proof.md
  scripts/proof.py --slow [--tree DIR] [ID...]   the same for those that take hours
  scripts/proof.py --render                  writes the page again from docs/proof.json
  scripts/proof.py --check                   exits 1 if the page is not what docs/proof.json says, is that of another version than CMakeLists.txt, or README.md names
                                             another commit; the default suite asks

Commands run in DIR (default: this checkout), which must have the release's files and be built by ./scripts/setup.sh --tests:
  git worktree add ../release COMMIT
A claim is on the page once its command has succeeded on the release, over as many days as it takes.
"""
import argparse
import datetime
import fcntl
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs" / "proof.json", ROOT / "docs" / "proof.md"
PASSED = r"All tests passed \((\d+ assertions in \d+ test cases?)\)"
PASSED_BUT_EXPECTED = r"(?m)^(test cases: +\d+ \| +\d+ passed \| +\d+ failed as expected)$"  # by cases in which a check must fail
HEAD = """\
# Proof

<!-- Written by scripts/proof.py from what it ran. Do not edit. -->

Release {version}, commit {commit}. Each section is a claim, the command that shows it, and what that command printed there: figure, date and machine.
[testing.md](testing.md) explains the methods. What is said about the CUDA path holds for the simulated GPU; [gpu.md](gpu.md) says what has run on a real one.
"""


class Claim:
    """`keeps`: the file in which the command collects what it has done, so that a later call continues."""

    def __init__(self, id, claim, command, detail="", figures=(PASSED,), slow=False, keeps=None):
        self.id, self.claim, self.command, self.detail, self.figures, self.slow, self.keeps = id, claim, command, detail, figures, slow, keeps


CLAIMS = [
    Claim("parity-pairs", "Every layout trains the model of one rank", 'build/tests/test_parity "~[slow]"',
          "Four awkward models of 13 layers; tensor, pipeline and data degrees 1 to 4 on up to eight ranks; every pair of values of 18 options (schedules, virtual and "
          "uneven stages, ZeRO 0-3, replicas, sequence parallelism, accumulation, reshard, prefetch, buckets, recomputation, windows, optimizers, ...). Losses, gradient "
          "norms, every gradient and weight agree with one rank within 1e-10 in fp64."),
    Claim("parity-triples", "The same for every triple of options", 'build/tests/test_parity "[slow]"', "All legal triples of values, 500 layouts drawn at random, "
          "and 2,240 coarser layouts in fp32 too.", slow=True),
    Claim("same-bits", "Schedules and recomputation change no bit", 'build/tests/test_parity "*same bits*,*bit-identical*,*no bit*"',
          "gpipe, 1f1b, zb_h1 and zb_h2 give equal bits, as do interleaved and V-shaped schedules and their own stages run forwards first; none, selective and full "
          "recomputation; both gradient accumulations; in fp64, fp32, bf16 and fp16."),
    Claim("pytorch", "One rank trains PyTorch's model", "build/tests/test_golden", "Ten losses and gradient norms of both families agree with PyTorch within 1e-9 in "
          "fp64 and 1e-4 in fp32; `scripts/golden.py` made the golden files."),
    Claim("kernels", "Every kernel computes what its reference does", 'build/tests/test_kernels "~[slow]"', "fp64, fp32, bf16 and fp16, every instruction level of the CPU "
          "(AMX tiles emulated too) and the simulated GPU, odd sizes and alignments, poisoned guards, equal bits over threads, orders and reruns.",
          figures=(PASSED_BUT_EXPECTED,)),
    Claim("bubbles", "The simulator gives the published bubbles", 'build/tests/test_parallel "*published*"', "Nine profiles of Qi et al. (arXiv:2401.10241, tables 9 and "
          "5) agree within 0.1 points for 1F1B, ZB-H1 and ZB-H2, and for interleaved 1F1B by the authors' count of transfers."),
    Claim("deadlock", "No generated schedule deadlocks", 'build/tests/test_parallel "every generated*"', "All 69,120 combinations of schedule, 1 to 8 ranks, 1 to 4 virtual "
          "stages, 1 to 20 micro-batches and lowering policy are validated under rendezvous semantics, with the whole step in the list; every run validates its own lists "
          "before it starts."),
    Claim("memory-bytes", "Memory and traffic are what the formulas say", 'build/tests/test_parity "memory*,bytes*,a forecast*"',
          "Counted without memory = measured = formula, to the byte; 20 random configurations and layouts, every rank, category and phase."),
    Claim("published-left-out", "Forecasts of step time hold for published runs that they were not fitted to",
          "build/tests/published_fit tests/plan/published.yaml",
          "Each table of a document is left out in turn. All fitted figures of other systems are fitted anew without it, from their expected values, and then forecast its runs. "
          "The form of the model was chosen with all of these runs in view.",
          figures=(r"(?s)\A(.*)\Z",)),
    Claim("published-time", "Forecasts of step time and memory reproduce the published runs of their fit", "build/tests/published_table tests/plan/published.yaml",
          "Runs of eleven systems on 8 to 12,288 GPUs. The constants of each system were fitted to these runs; the claim above is about runs left out.",
          figures=(r"(?s)\A(.*)\Z",)),
    Claim("search", "Searches and proofs are quick", 'build/tests/test_plan "*16\\,384*"', "All legal layouts of a 405-billion model on 16,384 GPUs are ranked on one core, and "
          "every rank's list of a step is proven free of deadlock and simulated.", figures=(PASSED, r"(?m)^(.*(?:layouts|ranks).* s\b.*)$")),
    Claim("world", "Forecast and simulation are one", 'build/tests/test_plan "the simulated world*"', "32 layouts: every rank moved by itself takes the forecast's step.",
          figures=(PASSED, r"(?m)^(.*%.*)$")),
    Claim("verify-bugs", "`verify` finds planted bugs and names them", "scripts/mutations.sh --verify", "Bugs of the training path; the figure is how many were found, and for "
          "how many axis and kind of layer were named as written down beforehand.", figures=(r"(\d+ planted, verify found .*)",), slow=True),
    Claim("mutations", "The suite notices planted bugs", "scripts/mutations.sh --results docs/planted.md", "[planted.md](planted.md) names the test that caught each.",
          figures=(r"(\d+ planted, \d+ survived)",), slow=True, keeps="docs/planted.md"),
    Claim("damage", "Damage is never loaded", 'build/tests/test_unit "checkpoint damage*"', "5,000 random single bits flipped in all files of a checkpoint: each is refused with "
          "the file's name."),
    Claim("save-faults", "A save that dies or fails anywhere leaves a complete checkpoint", 'build/tests/test_e2e "save: every call*"', "SIGKILL, and a full or broken "
          "disk, at each I/O call of a save by one rank and by each of two.", figures=(PASSED, r"(?m)^(.*calls.*)$")),
    Claim("death", "Dead and hung ranks are named, and all exit", 'build/tests/test_e2e "death:*"', figures=(PASSED, r"(?m)^(.*named after .*)$")),
    Claim("kills", "No kill changes a run", "scripts/kill-trials.sh 300", "SHA-256 of weights, moments, random state, data position and all losses against an undisturbed run.",
          figures=(r"(?s)(\| layout.*)\Z",), slow=True),
    Claim("slurm", "No kill over Slurm changes a run", "tests/slurm/jobs.py --trials 100", "Ranks, srun, slurmstepd, batch scripts, nodes, signals, requeues and preemptions at "
          "random moments of the training: all losses, norms and the last checkpoint against an undisturbed run.", figures=(r"(\d+ of \d+ trials .*)",), slow=True),
    Claim("stops", "No stop changes a run", "scripts/stop-trials.py", figures=(r"(?s)(\|.*)\Z",), slow=True),
    Claim("reshard", "Any layout reads any other's checkpoint", 'build/tests/test_parity "*checkpoint of every layout*"', "Weights, moments and the checkpoint saved again are "
          "equal bit for bit, the next losses within 1e-10."),
    Claim("fuzz", "Malformed files never crash the readers", "scripts/fuzz.sh 600", "Ten minutes each under AddressSanitizer.", figures=(r"(?s)(target +executions.*)\Z",), slow=True),
    Claim("tokenizers", "Tokenizers give the ids of the originals", 'build/tests/test_unit "tokenizers:*"', "10,000 lines (code, emoji, CJK, right-to-left, invalid UTF-8) "
          "with the ids of GPT-2, LLaMA-3, Qwen2 and DeepSeek patterns and of SentencePiece BPE and unigram."),
    Claim("huggingface", "Models are those of transformers", 'build/tests/test_unit "the logits of a Hugging Face*"', "LLaMA, Mistral, Qwen2, Qwen3 and GPT-2: logits on 1, 2 and 4 "
          "tensor ranks agree within 1e-5."),
    Claim("cuda", "GPUs train the model of the CPU", "ctest --test-dir build -L cuda", "On simulated GPUs: models on one, layouts on up to eight, in 28 pairs of "
          "layout and stream order (64 with the slow test): fp32 within 1e-4, bf16 and fp16 within twice the CPU's own error.", figures=(r"(\d+% tests passed, \d+ tests failed out of \d+)",)),
    Claim("sass", "No CUDA kernel's machine code is worse than recorded", "scripts/sass-lint.py", "Registers, stack, spills, shared memory, blocks of a multiprocessor, widths of "
          "accesses and the instructions of the main loops, against `tests/kernels/sass.txt`.", figures=(r"(?m)^(\d+ kernels on .*)$",)),
]


class Error(Exception):
    pass


def git(tree, *arguments):
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Error(done.stderr.strip())
    return done.stdout.strip()


def version():
    return re.search(r"project\(trireme VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text)
    levels = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f" {flag}" in text]
    return f"{name[1] if name else 'unknown CPU'} ({levels[0] if levels else 'portable'}), {text.count('processor' + chr(9))} cores"


def check_tree(tree, release):
    """Documents may differ: the page is one of them."""
    if not release["commit"]:
        raise Error(f"release {release['version']} is not committed yet; run scripts/proof.py --release on its commit")
    different = git(tree, "diff", "--name-only", release["commit"], "--", ".", ":!*.md", ":!docs/proof.json")
    if different:
        raise Error(f"{tree} is not release {release['version']}: {different.split()[0]} differs; git worktree add ../release {release['commit']}")


def copy_kept(claim, source, target):
    if claim.keeps and source != target and (source / claim.keeps).exists():
        shutil.copy(source / claim.keeps, target / claim.keeps)


def run(claim, tree):
    """What the command showed; raises Error if it failed."""
    print(f"proof: {claim.id}: {claim.command}", file=sys.stderr, flush=True)
    copy_kept(claim, ROOT, tree)
    started = time.monotonic()
    done = subprocess.run(claim.command, shell=True, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    seconds = round(time.monotonic() - started)
    copy_kept(claim, tree, ROOT)
    figures = [match if isinstance(match, str) else match[0] for pattern in claim.figures for match in re.findall(pattern, done.stdout)]
    if done.returncode or not figures:
        end = "\n".join(done.stdout.splitlines()[-20:])
        raise Error(f"{claim.id} " + (f"failed with exit code {done.returncode}" if done.returncode else "printed no figure") + f":\n{end}")
    result = {"figure": "\n".join(figures), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "machine": machine()}
    if not claim.keeps:
        result["seconds"] = seconds
    return result


def section(claim, result):
    lines = [f"## {claim.claim}", ""]
    if claim.detail:
        lines += [claim.detail, ""]
    lines += ["```console", claim.command, "```"]
    if "\n" in result["figure"]:
        lines += ["```text", result["figure"].rstrip(), "```"]
    else:
        lines += [f"**{result['figure'].strip()}**", ""]
    took = f", {result['seconds']} s" if "seconds" in result else ""
    lines += [f"{result['date']}, {result['machine']}{took}.", ""]
    return "\n".join(lines)


def page(record):
    release = record["release"]
    sections = [section(claim, record["claims"][claim.id]) for claim in CLAIMS if claim.id in record["claims"]]
    head = HEAD.format(version=release["version"], commit=release["commit"] or "to come")
    return "\n".join([head] + (sections or ["Nothing has been run on this release yet.\n"]))


def check(record):
    release = record["release"]
    if release["version"] != version():
        raise Error(f"docs/proof.md is of release {release['version']}, CMakeLists.txt says {version()}; run scripts/proof.py --release")
    if not PAGE.exists() or PAGE.read_text() != page(record):
        raise Error("docs/proof.md is not what docs/proof.json says; run scripts/proof.py --render")
    if release["commit"] not in (ROOT / "README.md").read_text():
        raise Error(f"README.md does not name commit {release['commit']}, which docs/proof.md is of")


def write(record):
    RESULTS.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(record))


def read():
    return json.loads(RESULTS.read_text())


def keep(claim, result):
    """Without a result the claim is taken off the page. Reads the file anew, as another claim may have been kept while this one ran."""
    with open(RESULTS) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two calls may run at a time
        record = read()
        record["claims"].pop(claim.id, None)
        if result:
            record["claims"][claim.id] = result
        write(record)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("list", "release", "slow", "render", "check"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT, metavar="DIR")
    parser.add_argument("ids", nargs="*", metavar="ID")
    options = parser.parse_args(arguments)
    if options.release:
        commit = "" if git(ROOT, "status", "--porcelain") else git(ROOT, "rev-parse", "--short=9", "HEAD")
        write({"release": {"version": version(), "commit": commit}, "claims": {}})
        return 0
    record = read()
    if options.list:
        for claim in CLAIMS:
            print(f"{claim.id:19} {'slow' if claim.slow else '    '} {record['claims'].get(claim.id, {}).get('date', 'not run'):11} {claim.claim}")
    elif options.check:
        check(record)
    elif options.render:
        write(record)
    else:
        tree, failures = options.tree.resolve(), []
        check_tree(tree, record["release"])
        for claim in CLAIMS:
            if claim.slow != options.slow or (options.ids and not any(word in claim.id for word in options.ids)):
                continue
            result = None
            try:
                result = run(claim, tree)
            except Error as error:
                failures.append(str(error))
            keep(claim, result)
        if failures:
            raise Error("\n".join(failures))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Error as error:
        print(f"proof: {error}", file=sys.stderr)
        sys.exit(1)
