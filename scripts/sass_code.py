"""Figures of GPU kernels from the texts of cuobjdump: resources, widths of accesses, instructions of main loops, occupancy, bounds. For sass-lint.py."""
import collections
import dataclasses
import re

DYNAMIC = "trireme_dynamic_shared"  # kernels/cuda/device.cuh

# Limits of a multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities": 64 warps, 32 blocks, 64 K registers that warps take by 256 in each of four
# quarters; shared memory in units of 128 bytes, of which CUDA takes 1 KB for itself in each block.
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
WARPS, BLOCKS, REGISTERS, REGISTER_UNIT, QUARTERS, SHARED_UNIT, SHARED_OF_BLOCK = 64, 32, 65536, 256, 4, 128, 1024

# Clocks of a multiprocessor for one instruction of a warp. HMMA.16816 is 4,096 FLOP: at 2,048 a clock on A100 (NVIDIA A100 whitepaper), and on H100 at
# 62.9 % of 4,096, the share that mma.sync reaches of it (Luo et al. 2024, arXiv:2402.13499). Shared memory moves 128 bytes a clock without bank
# conflicts: LDSM.x4 reads 512; LDS, STS and LDGSTS (cp.async) move the width of their access for each lane. 16 MUFU results a clock. No published
# figure for mma.sync on sm_100 was found, so its loops have no bound.
HMMA_FLOPS, LDSM_CLOCKS, MUFU_CLOCKS, WORD = 4096, 4, 2, 4
HMMA_CLOCKS = {"sm_80": 2, "sm_90": 1 / 0.629}
CLOCKS = {"sm_80": 108 * 1.41e9, "sm_90": 132 * 1.83e9}  # multiprocessors x boost clock: A100, H100 SXM

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
ADDRESS = re.compile(r"(?<!desc)\[([^\]]+?)(?:\+(-?0x[0-9a-f]+))?\]")
BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclasses.dataclass
class Kernel:
    """Figures of one kernel on one architecture."""
    threads: int = 0
    least: int = 0         # blocks a multiprocessor that __launch_bounds__ asks for
    uses_dynamic: bool = False
    registers: int = 0
    stack: int = 0
    static: int = 0        # bytes of shared memory
    spills: int = 0        # accesses of local memory
    loads: collections.Counter = dataclasses.field(default_factory=collections.Counter)   # of global memory, by bytes
    stores: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    divided: int = 0       # global accesses of 16 or 8 bytes that were divided into narrower ones
    loop: tuple = ()       # of the main loop: HMMA, LDSM, MUFU, clocks of shared memory


def short_name(name):
    """A demangled name without return type, namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|\btrireme::(cuda::)?", "", name)
    depth = 0
    for at, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    return re.sub(r"\((?:unsigned )?(?:int|bool|char|long)\)", "", name.removeprefix("void "))


def blocks_per_multiprocessor(arch, registers, threads, shared):
    warps = -(-threads // 32)
    by_warps = WARPS // warps
    of_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // QUARTERS // of_warp * QUARTERS // warps
    of_block = -(-(shared + SHARED_OF_BLOCK) // SHARED_UNIT) * SHARED_UNIT
    return min(BLOCKS, by_warps, by_registers, SHARED[arch] // of_block)


def bound(arch, loop):
    """(pipe, TFLOP/s of the whole GPU) that limits a loop by its instruction counts; None without published rates."""
    if arch not in HMMA_CLOCKS:
        return None
    clocks = {"tensor": loop[0] * HMMA_CLOCKS[arch], "shared": loop[3], "mufu": loop[2] * MUFU_CLOCKS}
    pipe = max(clocks, key=clocks.get)
    return pipe, loop[0] * HMMA_FLOPS * CLOCKS[arch] / clocks[pipe] / 1e12


def width(opcode):
    return next((BYTES[part] for part in opcode.split(".")[1:] if part in BYTES), 4)


def shared_clocks(predicate, opcode):
    """Clocks of shared memory for one instruction of a warp. ptxas inserts loads that never run, predicated !PT."""
    base = opcode.split(".")[0]
    if base == "LDSM":
        return LDSM_CLOCKS
    return width(opcode) // WORD or 1 if base in ("LDS", "STS", "LDGSTS") and predicate != "!PT" else 0


def divided_accesses(accesses):
    """How many aligned ranges of 16 bytes, or else of 8, these (offset, bytes) cover entirely by narrower accesses."""
    count, covered = 0, {offset + i: size for offset, size in accesses for i in range(size)}
    for unit in (16, 8):
        for start in sorted({at // unit * unit for at in covered}):
            sizes = [covered.get(start + i, unit) for i in range(unit)]
            if max(sizes) < unit:
                count += 1
                for i in range(unit):
                    del covered[start + i]
    return count


def scan(lines, kernel):
    """Fills in what the instructions of one kernel say."""
    code = [match.groups() for match in map(INSTRUCTION.match, lines) if match]
    branches = [(int(address, 16), int(target[0], 16)) for address, _, opcode, operands in code
                if opcode.split(".")[0] == "BRA" and (target := re.findall(r"0x([0-9a-f]+)", operands))]
    targets = {target for _, target in branches}
    open_groups, written = collections.defaultdict(list), collections.Counter()

    def close():
        kernel.divided += sum(map(divided_accesses, open_groups.values()))
        open_groups.clear()

    for address, predicate, opcode, operands in code:
        if int(address, 16) in targets:
            close()
        base = opcode.split(".")[0]
        if base in ("LDL", "STL"):
            kernel.spills += 1
        if base in ("LDG", "STG"):
            (kernel.loads if base == "LDG" else kernel.stores)[width(opcode)] += 1
            if where := ADDRESS.search(operands):
                registers = tuple(written[name] for name in re.findall(r"U?R\d+", where[1]))
                open_groups[base, predicate, where[1], registers].append((int(where[2] or "0", 16), width(opcode)))
        if base in ("BRA", "EXIT", "BAR", "RET", "CALL"):
            close()
        if base not in ("STG", "STS", "STL") and (result := re.match(r"U?R(\d+)", operands)):
            wide = max(1, width(opcode) // 4) if base in ("LDG", "LDS", "LDL", "LDC") else 2 if "WIDE" in opcode or "64" in opcode else 1
            for i in range(int(result[1]) - 1, int(result[1]) + wide):  # the low half of a 64-bit address names it
                written[re.match(r"U?R", operands)[0] + str(i)] += 1
    close()

    bodies = []
    for address, target in branches:
        if target <= address:
            inside = [(predicate, opcode) for at, predicate, opcode, _ in code if target <= int(at, 16) <= address]
            body = collections.Counter(opcode.split(".")[0] for _, opcode in inside)
            shared = sum(shared_clocks(*instruction) for instruction in inside)
            bodies.append((body["HMMA"], -(address - target), (body["HMMA"], body["LDSM"], body["MUFU"], shared)))
    if bodies and max(bodies)[0] > 0:
        kernel.loop = max(bodies)[2]


def parse_sass(text):
    """Kernels of `cuobjdump -sass`, by mangled name."""
    kernels = {}
    for part in re.split(r"^\s*Function : ", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        scan(body.splitlines(), kernels.setdefault(name.strip(), Kernel()))
    return kernels


def add_resources(text, kernels, arch):
    """Adds what `cuobjdump -res-usage` says, whose shared memory includes CUDA's own part of a block from sm_90 on."""
    of_cuda = SHARED_OF_BLOCK if arch != "sm_80" else 0
    for name, registers, stack, static in re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text):
        if name in kernels:
            kernel = kernels[name]
            kernel.registers, kernel.stack, kernel.static = int(registers), int(stack), max(0, int(static) - of_cuda)


def parse_ptx(text):
    """(threads, blocks, uses dynamic shared memory) that the source declares for each kernel, by mangled name; 1,024 threads without __launch_bounds__."""
    declared = {}
    for part in re.split(r"\.entry\s+", text)[1:]:
        head, _, body = part.partition("{")
        threads, least = re.search(r"\.maxntid (\d+)", head), re.search(r"\.minnctapersm (\d+)", head)
        declared[re.match(r"\w+", part)[0]] = (int(threads[1]) if threads else 1024, int(least[1]) if least else 0, DYNAMIC in body)
    return declared
