#!/usr/bin/env python3
"""Checks the machine code of all GPU kernels of a built program against tests/kernels/sass.txt. Needs no GPU.

  scripts/sass-lint.py [--binary build/trireme] [--arch sm_80,sm_90]   exits 1 if a kernel breaks a rule or is worse than recorded
  scripts/sass-lint.py --write                                         records the figures of all three architectures (minutes, for sm_100)
  scripts/sass-lint.py --table                                         prints the loops of the attention kernels with their bounds

Rules: a kernel has as many blocks a multiprocessor as __launch_bounds__ asks for, and is recorded.
Worse is: more registers, stack, spills or shared memory, fewer blocks, more accesses of 16 or 8 bytes that were divided, narrow accesses in place of
16-byte ones, other HMMA and more LDSM, MUFU or clocks of shared memory in the main loop. Figures are compared only if the code is of the release of
CUDA that the file names.
sm_100 is compiled by ptxas from the program's PTX, as the driver does.
cuobjdump comes from the CUDA Toolkit or PyPI (nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm). Exits 77, which means skipped, if it is
missing or the program has no PTX.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from sass_code import add_resources, blocks_per_multiprocessor, bound, parse_ptx, parse_sass, short_name  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "kernels" / "sass.txt"
SKIPPED = 77
ARCHES = ("sm_80", "sm_90", "sm_100")

# Kernels of which fewer blocks fit than __launch_bounds__ asks for: (architecture, name, reason).
FEWER_BLOCKS = (
    (r"sm_\d+", r"plain_\w+_kernel<8,.*", "head sizes above 128, outside of the tensor-core kernels; the tiles of fp32 fill the shared memory"),
)


def find_tool(name):
    folders = [pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / part / "bin" for part in ("cu13", "cuda_cuobjdump", "cuda_nvdisasm")]
    path = os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("CUDA_HOME", "") + "/bin", "/usr/local/cuda/bin", *map(str, folders)])
    return shutil.which(name, path=path)


def read_program(binary, arches, cuobjdump, nvdisasm):
    """({arch: {short name: Kernel}}, {arch: release of CUDA that made the code}) of a program. Errors: ValueError if two kernels have one short name."""
    environment = {**os.environ, "PATH": f"{pathlib.Path(nvdisasm).parent}:{os.environ['PATH']}"}

    def run(*command, **options):
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, **options).stdout

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(cuobjdump, "-xelf", "all", "-xptx", "all", str(binary.resolve()), cwd=folder)
        texts = {path: path.read_text() for path in sorted(folder.glob("*.ptx"))}
        portable = [text for text in texts.values() if not re.search(r"^\.target sm_\d+a", text, re.M)]
        if not portable:
            print(f"sass-lint: skipped: {binary} has no PTX, in which launch bounds are declared; configure with -UCMAKE_CUDA_ARCHITECTURES")
            sys.exit(77)
        declared = {kernel: rest for text in texts.values() for kernel, rest in parse_ptx(text).items()}
        found, releases = {}, {}
        for arch in arches:
            cubins = sorted(folder.glob(f"*.{arch}.cubin"))
            if not cubins and all(target <= number(arch) for target in map(target_of, portable)):
                cubins = [compile_ptx(text, arch, binary.parent / "sass") for text in portable]
            cubins += sorted(folder.glob(f"*.{arch}a.cubin"))  # kernels with instructions that only this architecture has
            if not cubins:
                print(f"sass-lint: {binary} has no code for {arch}: not checked")
                continue
            kernels = {}
            for cubin in cubins:
                some = parse_sass(run(cuobjdump, "-sass", str(cubin)))
                add_resources(run(cuobjdump, "-res-usage", str(cubin), stderr=subprocess.STDOUT), some, arch)
                kernels.update(some)
                if note := re.search(rb"Cuda compilation tools, release ([\d.]+)", cubin.read_bytes()):
                    releases[arch] = note[1].decode()
            for mangled, kernel in kernels.items():
                kernel.threads, kernel.least, kernel.uses_dynamic = declared.get(mangled, (0, 0, False))
            names = run("c++filt", input="\n".join(kernels)).splitlines()
            found[arch] = {short_name(name): kernel for name, kernel in zip(names, kernels.values())}
            if len(found[arch]) < len(kernels):
                raise ValueError("two kernels have the same name and template arguments")
        return found, releases


def number(arch):
    return int(arch.removeprefix("sm_"))


def target_of(ptx):
    return int(re.search(r"^\.target sm_(\d+)", ptx, re.M)[1])


def compile_ptx(text, arch, cache):
    """The cubin of a PTX text, kept in `cache` by the text's digest."""
    ptxas = find_tool("ptxas")
    if ptxas is None:
        raise FileNotFoundError(f"ptxas, which compiles for {arch}")
    version = subprocess.run([ptxas, "--version"], stdout=subprocess.PIPE, check=True).stdout
    cubin = cache / f"{hashlib.sha256(version + text.encode()).hexdigest()[:16]}.{arch}.cubin"
    if not cubin.exists():
        cache.mkdir(exist_ok=True)
        source = cubin.with_suffix(f".{os.getpid()}.ptx")
        source.write_text(text)
        subprocess.run([ptxas, f"-arch={arch}", str(source), "-o", str(source.with_suffix(".new"))], check=True)
        source.with_suffix(".new").rename(cubin)
        source.unlink()
    return cubin


def same(values):
    """Values of all architectures in one word, or a word for each."""
    words = [str(value) for value in values]
    return words[0] if len(set(words)) == 1 else " ".join(words)


def widths(counts):
    return ",".join(f"{count}x{size}" for size, count in sorted(counts.items(), reverse=True)) or "-"


def blocks(arch, kernel, dynamic):
    return blocks_per_multiprocessor(arch, kernel.registers, kernel.threads, kernel.static + dynamic)


def fields(name, by_arch, dynamic):
    """The row of one kernel: columns of one value for all architectures or one for each, in the order of `by_arch`."""
    kernels, first = by_arch.values(), next(iter(by_arch.values()))
    row = {"threads": f"{first.threads} x {max(first.least, 1)}", "dynamic": str(dynamic), "static": same(k.static for k in kernels),
           "registers": same(k.registers for k in kernels), "blocks": same(blocks(arch, k, dynamic) for arch, k in by_arch.items()),
           "stack": same(f"{k.stack}+{k.spills}" for k in kernels), "loads": same(widths(k.loads) for k in kernels),
           "stores": same(widths(k.stores) for k in kernels), "divided": same(k.divided for k in kernels)}
    if any(k.loop for k in kernels):
        row["loop"] = same(":".join(map(str, k.loop)) for k in kernels)
        row["bound"] = " ".join("{} {:.0f}".format(*limit) for arch, k in by_arch.items() if k.loop and (limit := bound(arch, k.loop)))
    return row


def parse_golden(text):
    """({name: {column: {arch: value}}}, nvcc's release, architectures) of tests/kernels/sass.txt. Columns have only the architectures of the kernel."""
    release, arches = re.search(r"^# CUDA (\S+), (.*)$", text, re.M).groups()
    arches, rows = arches.split(), {}
    for line in text.splitlines():
        name, *columns = line.split(" | ")
        if columns and not line.startswith("#"):
            row = rows[name] = {}
            of = next((column.split()[1:] for column in columns if column.startswith("only ")), arches)
            for column in columns:
                key, _, value = column.partition(" ")
                words = value.split() if key not in ("threads", "bound") else [value]
                row[key] = dict(zip(of, words * len(of) if len(words) == 1 else words))
    return rows, release, arches


def broken_rules(arch, name, kernel, dynamic):
    """Complaints about what no kernel may do, whatever the compiler."""
    if kernel.uses_dynamic and not dynamic:
        yield "its dynamic shared memory is not in tests/kernels/sass.txt"
    held = blocks(arch, kernel, dynamic)
    expected = any(re.fullmatch(of, arch) and re.fullmatch(which, name) for of, which, _ in FEWER_BLOCKS)
    if expected and held >= kernel.least:
        yield "as many blocks fit as __launch_bounds__ asks for: take it out of FEWER_BLOCKS"
    if held < (1 if expected else max(kernel.least, 1)):
        yield f"{held} blocks fit a multiprocessor, __launch_bounds__ asks for {max(kernel.least, 1)}"


def worse(arch, kernel, dynamic, row):
    """Complaints about figures that are worse than the recorded ones."""
    def recorded(column):
        return row.get(column, {}).get(arch, "")

    def counts(text):
        return {int(size): int(count) for count, size in re.findall(r"(\d+)x(\d+)", text)}

    stack, spills = map(int, recorded("stack").split("+"))
    for what, now, before in (("registers", kernel.registers, int(recorded("registers"))), ("bytes of stack", kernel.stack, stack),
                              ("accesses of spilled registers", kernel.spills, spills),
                              ("bytes of static shared memory", kernel.static, int(recorded("static"))),
                              ("divided accesses", kernel.divided, int(recorded("divided")))):
        if now > before:
            yield f"{now} {what}, {before} recorded"
    if (held := blocks(arch, kernel, dynamic)) < int(recorded("blocks")):
        yield f"{held} blocks a multiprocessor, {recorded('blocks')} recorded"
    for what, now in (("loads", kernel.loads), ("stores", kernel.stores)):
        before = counts(recorded(what))
        if now[16] < before.get(16, 0) and sum(now.values()) - now[16] > sum(before.values()) - before.get(16, 0):
            yield f"{what} {widths(now)}, {recorded(what)} recorded: wide accesses became narrow"
    loop = tuple(map(int, recorded("loop").split(":"))) if recorded("loop") else ()
    for what, now, before in zip(("HMMA", "LDSM", "MUFU", "clocks of shared memory"), kernel.loop or (0, 0, 0, 0), loop or (0, 0, 0, 0)):
        if now > before or (what == "HMMA" and now < before):
            yield f"{now} {what} in the main loop, {before} recorded"


def check(found, releases, golden):
    """All complaints, one line each."""
    rows, golden_release, arches = parse_golden(golden)
    complaints = []
    for arch, kernels in found.items():
        for name in sorted(name for name, row in rows.items() if name not in kernels and arch in row["threads"]):
            complaints.append(f"{arch}: {name}: recorded, but not in the program")
        for name, kernel in sorted(kernels.items()):
            row = rows.get(name)
            if row is None or arch not in row["threads"]:
                complaints.append(f"{arch}: {name}: not recorded in tests/kernels/sass.txt; run scripts/sass-lint.py --write")
                continue
            dynamic = int(row["dynamic"][arch])
            some = list(broken_rules(arch, name, kernel, dynamic))
            if releases.get(arch) == golden_release and arch in arches:
                some += worse(arch, kernel, dynamic, row)
            complaints += [f"{arch}: {name}: {text}" for text in some]
    return complaints


HEAD = """\
# Machine code of every GPU kernel. scripts/sass-lint.py --write writes it, scripts/sass-lint.py compares. A column has one value for all architectures or
# one for each.
# CUDA {release}, {arches}
# threads T x B: threads of a block, and the blocks a multiprocessor that __launch_bounds__ asks for. dynamic: bytes of shared memory of a launch, written
# by hand, for the widest row, and compared with launches by attention_test.cpp and norm_test.cpp of
# tests/cuda. blocks: that fit a multiprocessor. stack: bytes + accesses of spilled registers.
# loads, stores: of global memory, count x bytes. divided: accesses of 16 or 8 bytes that were divided. loop: HMMA:LDSM:MUFU:clocks of shared memory, of
# which branches that are seldom taken are a part. bound: the slowest pipe and what it allows in TFLOP/s on A100 and H100, counting the loop's own
# products (two of attention's forward, five of its backward): a bound from instruction counts, not a measurement. only: the architectures that
# have this kernel. Main loops of products of warpgroups are not compared.
"""


def write(found, release, path):
    rows = parse_golden(path.read_text())[0] if path.exists() else {}
    lines = [HEAD.format(release=release, arches=" ".join(found))]
    for name in sorted({name for kernels in found.values() for name in kernels}):
        by_arch = {arch: kernels[name] for arch, kernels in found.items() if name in kernels}
        only = [f"only {' '.join(by_arch)}"] if len(by_arch) < len(found) else []
        dynamic = next(iter(rows.get(name, {}).get("dynamic", {"": "0"}).values()))
        lines.append(" | ".join([name, *only, *(f"{key} {value}" for key, value in fields(name, by_arch, int(dynamic)).items())]) + "\n")
    path.write_text("".join(lines))


def table(found):
    print("| kernel | " + " | ".join(f"HMMA : LDSM : MUFU : clocks of shared memory, {arch}" for arch in found) + " |\n|---" * (1 + len(found)) + "|")
    for name in sorted({name for kernels in found.values() for name, kernel in kernels.items() if kernel.loop}):
        cells = []
        for arch, kernels in found.items():
            limit = bound(arch, kernels[name].loop)
            cells.append(" : ".join(map(str, kernels[name].loop)) + (", {} {:.0f} TFLOP/s".format(*limit) if limit else ""))
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "trireme")
    parser.add_argument("--arch", default="sm_80,sm_90", help="architectures, separated by commas")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        print("sass-lint: skipped: cuobjdump and nvdisasm are not installed (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    found, releases = read_program(options.binary, ARCHES if options.write else options.arch.split(","), cuobjdump, nvdisasm)
    if options.write:
        write(found, releases[ARCHES[0]], GOLDEN)
        return 0
    if options.table:
        table(found)
        return 0
    golden = GOLDEN.read_text()
    complaints = check(found, releases, golden)
    print("\n".join(f"sass-lint: {text}" for text in complaints), file=sys.stderr, end="\n" if complaints else "")
    known = parse_golden(golden)[1]
    for arch, release in releases.items():
        if release != known:
            print(f"sass-lint: the code for {arch} is of CUDA {release}, the figures are of {known}: only blocks and shared memory were checked")
    print(f"{sum(map(len, found.values()))} kernels on {', '.join(found)}, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
