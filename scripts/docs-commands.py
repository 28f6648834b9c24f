#!/usr/bin/env python3
"""Runs the commands of the documents: every block marked ```sh, in order, in a scratch copy of the tree with this tree's build/trireme.

  scripts/docs-commands.py [--prepared DIR] [FILE...]      default: all of docs/
    --prepared DIR   takes data/quickstart and runs/quickstart-1 from DIR instead of running ./scripts/quickstart.sh

Exits 1 at the first block that fails, with its output. Blocks marked ```console are for machines that not everybody has, and are not run.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def blocks(path):
    return [match[1] for match in re.finditer(r"^```sh\n(.*?)^```", path.read_text(), re.S | re.M)]


def copy_tree(to):
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in files.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (to / "build").mkdir()
    shutil.copy2(ROOT / "build/trireme", to / "build/trireme")
    (to / "scripts/setup.sh").write_text("#!/bin/sh\n# The binary is there.\n")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args(arguments)
    files = options.files or sorted((ROOT / "docs").glob("*.md"), key=lambda path: (path.name != "getting-started.md", path.name))
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch) / "tree"
        tree.mkdir()
        copy_tree(tree)
        prepared = False
        for file in files:
            found = blocks(file)
            for number, block in enumerate(found, 1):
                if "quickstart" in block and not prepared:
                    if options.prepared:
                        for part in ("data/quickstart", "runs/quickstart-1"):
                            shutil.copytree(options.prepared / part, tree / part)
                    else:
                        subprocess.run(["./scripts/quickstart.sh"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
                    prepared = True
                block = re.sub(r"^\./scripts/quickstart\.sh.*$", ":", block, flags=re.M)
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                if done.returncode != 0:
                    print(f"docs-commands: {file.name}, block {number} of {len(found)} failed with exit code {done.returncode}:\n{block}", file=sys.stderr)
                    sys.stderr.buffer.write(done.stdout[-4000:])
                    return 1
            print(f"docs-commands: {file.name}: {len(found)} blocks ran", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
