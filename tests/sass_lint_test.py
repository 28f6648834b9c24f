#!/usr/bin/env python3
"""Tests scripts/sass-lint.py on short texts in the format of cuobjdump and nvcc."""
import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[1] / "scripts"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPTS))
import sass_code  # noqa: E402

SPEC = importlib.util.spec_from_file_location("sass_lint", SCRIPTS / "sass-lint.py")
lint = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint)


def sass(*instructions, name="kernel"):
    """The text of cuobjdump -sass for one kernel; each instruction has a second line with the rest of its code."""
    lines = [f"        /*{16 * i:04x}*/                   {text} ;               /* 0x000078 */\n" + " " * 80 + "/* 0x000fe4 */"
             for i, text in enumerate(instructions)]
    return f"\tcode for sm_80\n\t\tFunction : {name}\n\t.headerflags\t@\"EF_CUDA_SM80\"\n" + "\n".join(lines) + "\n\t\t..........\n"


def kernel_of(*instructions):
    return sass_code.parse_sass(sass(*instructions))["kernel"]


class Code(unittest.TestCase):
    def test_widths_of_global_accesses(self):
        kernel = kernel_of("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "LDG.E R8, [R2.64+0x10]", "@!P0 STG.E.U16 [R2.64], R8", "STG.E.64 [R2.64+0x8], R4",
                           "STS.128 [R9], R4", "LDS R1, [R9]", "STG.E.U8 [R6.64], R1")
        self.assertEqual(kernel.loads, {16: 1, 4: 1})
        self.assertEqual(kernel.stores, {2: 1, 8: 1, 1: 1})

    def test_a_store_of_16_bytes_that_was_divided(self):
        for base in ("[R2.64{}]", "desc[UR4][R2.64{}]", "desc[UR4][R2.64+UR6{}]"):
            parts = [f"STG.E {base.format(offset)}, R{9 + i}" for i, offset in enumerate(("", "+0x4", "+0x8", "+0xc"))]
            self.assertEqual(kernel_of(*parts).divided, 1)
            self.assertEqual(kernel_of(*reversed(parts)).divided, 1)  # in any order
            self.assertEqual(kernel_of(*parts[:2]).divided, 1)        # 8 bytes
            self.assertEqual(kernel_of(parts[0], parts[2]).divided, 0)
            self.assertEqual(kernel_of(*parts[:1], "IADD3 R20, R21, R22, RZ", *parts[1:]).divided, 1)

    def test_stores_to_different_addresses_are_not_one(self):
        first, second = "STG.E [R2.64], R9", "STG.E [R2.64+0x4], R10"
        self.assertEqual(kernel_of(first, second).divided, 1)
        self.assertEqual(kernel_of(first, "IADD3 R2, P0, R2, R4, RZ", second).divided, 0)     # the address has changed
        self.assertEqual(kernel_of(first, "IMAD.X R3, RZ, RZ, R5, P0", second).divided, 0)    # its upper half
        self.assertEqual(kernel_of(first, "LDG.E.128 R0, [R6.64]", second).divided, 0)        # R0 to R3
        self.assertEqual(kernel_of("@P0 " + first, "@P1 " + second).divided, 0)               # one may happen without the other
        self.assertEqual(kernel_of(first, "@P0 BRA 0x30", second, "EXIT").divided, 0)
        self.assertEqual(kernel_of(first, "NOP", second, "@P0 BRA 0x20", "EXIT").divided, 0)  # a branch leads between them
        self.assertEqual(kernel_of(first, "STG.E [R4.64+0x4], R10").divided, 0)
        self.assertEqual(kernel_of("STG.E.128 [R2.64], R4", "STG.E.128 [R2.64+0x10], R8").divided, 0)
        self.assertEqual(kernel_of("LDG.E R8, [R2.64]", "LDG.E R9, [R2.64+0x4]").divided, 1)

    def test_the_main_loop_is_the_smallest_with_the_most_products(self):
        inner = ["LDSM.16.M88.4 R4, [R8]", "HMMA.16816.F32.BF16 R12, R4, R6, R12", "HMMA.16816.F32.BF16 R16, R4, R6, R16", "MUFU.EX2 R3, R3",
                 "@!PT LDS RZ, [RZ]"]
        kernel = kernel_of("MUFU.RCP R1, R1", *inner, "@P0 BRA 0x10", "MUFU.EX2 R5, R5", "@!P1 BRA `(.L_x_1) 0x0", "EXIT")
        self.assertEqual(kernel.loop, (2, 1, 1, 4))
        self.assertEqual(kernel_of("MUFU.EX2 R5, R5", "@P0 BRA 0x0").loop, ())

    def test_clocks_of_shared_memory(self):
        for instruction, clocks in (("LDSM.16.MT88.4 R4, [R8]", 4), ("LDS R1, [R9]", 1), ("LDS.U16 R1, [R9]", 1), ("LDS.128 R4, [R9]", 4),
                                    ("@P0 STS.64 [R9], R4", 2), ("LDGSTS.E.BYPASS.128 [R9+0x1000], desc[UR18][R4.64], !P2", 4),
                                    ("LDG.E.128 R4, desc[UR4][R2.64]", 0), ("@!PT LDS RZ, [RZ]", 0)):
            kernel = kernel_of(instruction, "HMMA.16816.F32.BF16 R12, R4, R6, R12", "@P0 BRA 0x0")
            self.assertEqual(kernel.loop[3], clocks, instruction)

    def test_resources(self):
        text = "Resource usage:\n Common:\n  GLOBAL:0\n Function kernel:\n  REG:64 STACK:16 SHARED:17440 LOCAL:0 CONSTANT[0]:472\n"
        for arch, static in (("sm_80", 17440), ("sm_90", 16416), ("sm_100", 16416)):
            kernels = sass_code.parse_sass(sass("LDL.64 R2, [R1]", "STL [R1+0x8], R2", "EXIT"))
            sass_code.add_resources(text, kernels, arch)
            kernel = kernels["kernel"]
            self.assertEqual((kernel.registers, kernel.stack, kernel.static, kernel.spills), (64, 16, static, 2))

    def test_launch_bounds(self):
        text = (".extern .shared .align 16 .b8 trireme_dynamic_shared[];\n.entry one(\n.param .u64 one_param_0\n)\n.maxntid 128, 1, 1\n.minnctapersm 2\n{\n"
                "mov.u64 %rd1, trireme_dynamic_shared;\n}\n.visible .entry two(\n)\n{\nret;\n}\n")
        self.assertEqual(sass_code.parse_ptx(text), {"one": (128, 2, True), "two": (1024, 0, False)})

    def test_names(self):
        hidden = "trireme::cuda::(anonymous namespace)::"
        self.assertEqual(sass_code.short_name(f"void {hidden}map<trireme::bfloat16, (int)8, {hidden}Sum>({hidden}Sum, long)"), "map<bfloat16, 8, Sum>")

    def test_blocks_of_a_multiprocessor(self):
        # By registers, threads, the limit of 32, and shared memory, where two blocks of sm_80 may take 82,944 bytes each.
        for arch, registers, threads, shared, blocks in (
                ("sm_80", 255, 128, 0, 2), ("sm_80", 32, 256, 0, 8), ("sm_80", 16, 64, 0, 32), ("sm_90", 64, 1024, 0, 1), ("sm_80", 97, 256, 0, 2),
                ("sm_80", 80, 1024, 0, 0), ("sm_80", 255, 128, 99344, 1), ("sm_90", 255, 128, 99344, 2), ("sm_80", 255, 128, 82944, 2),
                ("sm_80", 255, 128, 82945, 1), ("sm_80", 242, 128, 66048, 2)):
            self.assertEqual(sass_code.blocks_per_multiprocessor(arch, registers, threads, shared), blocks, (arch, registers, threads, shared))

    def test_bounds(self):
        self.assertEqual(sass_code.bound("sm_80", (192, 80, 32, 320))[0], "tensor")
        self.assertAlmostEqual(sass_code.bound("sm_80", (192, 80, 32, 320))[1], 312, delta=1)  # the peak of A100
        self.assertEqual(sass_code.bound("sm_80", (256, 144, 32, 640))[0], "shared")
        self.assertAlmostEqual(sass_code.bound("sm_80", (256, 144, 32, 640))[1], 312 * 512 / 640, delta=1)
        self.assertEqual(sass_code.bound("sm_90", (16, 1, 64, 4))[0], "mufu")
        self.assertAlmostEqual(sass_code.bound("sm_90", (256, 80, 128, 400))[1], 0.629 * 989.4, delta=1)
        self.assertIsNone(sass_code.bound("sm_100", (192, 80, 32, 320)))


class Comparison(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "sass.txt"
        lint.write(self.found(), "13.0", self.path)
        # What is written by hand: the dynamic shared memory.
        self.path.write_text(self.path.read_text().replace("dynamic 0", "dynamic 66048"))
        lint.write(self.found(), "13.0", self.path)

    @staticmethod
    def found(**changes):
        kernel = {"threads": 128, "least": 2, "uses_dynamic": True, "registers": 240, "static": 512, "loads": {16: 4}, "stores": {16: 2, 4: 1},
                  "loop": (64, 36, 8, 160), **changes}
        other = {**kernel, "registers": 250} if "registers" not in changes else kernel
        return {"sm_80": {"flash<8>": sass_code.Kernel(**kernel)}, "sm_90": {"flash<8>": sass_code.Kernel(**other)}}

    def complaints(self, found, release="13.0"):
        return lint.check(found, dict.fromkeys(found, release), self.path.read_text())

    def test_what_was_written_is_accepted(self):
        self.assertEqual(self.complaints(self.found()), [])
        self.assertIn("dynamic 66048", self.path.read_text())
        self.assertIn("registers 240 250", self.path.read_text())

    def test_every_figure_that_gets_worse_is_named(self):
        for changes, word in (
                ({"registers": 251}, "251 registers"), ({"stack": 8}, "8 bytes of stack"), ({"spills": 1}, "spilled"), ({"static": 513}, "static shared"),
                ({"static": 20000}, "1 blocks a multiprocessor, 2 recorded"), ({"divided": 1}, "divided"), ({"stores": {16: 1, 4: 5}}, "stores"),
                ({"loads": {16: 3, 4: 4}}, "loads"), ({"loop": (64, 37, 8, 160)}, "37 LDSM"), ({"loop": (64, 36, 9, 160)}, "9 MUFU"),
                ({"loop": (64, 36, 8, 161)}, "161 clocks of shared memory"), ({"loop": (128, 36, 8, 160)}, "128 HMMA"),
                ({"loop": (32, 36, 8, 160)}, "32 HMMA"), ({"loop": ()}, "0 HMMA")):
            complaints = self.complaints(self.found(**changes))
            self.assertTrue(any(word in text and text.startswith("sm_80: flash<8>: ") for text in complaints), (changes, complaints))

    def test_better_figures_are_accepted(self):
        for changes in ({"registers": 100}, {"static": 0}, {"stores": {16: 2}}, {"loads": {16: 3}}, {"loop": (64, 30, 8, 150)}):
            self.assertEqual(self.complaints(self.found(**changes)), [], changes)

    def test_figures_of_another_compiler_are_not_compared_but_rules_hold(self):
        self.assertEqual(self.complaints(self.found(registers=255, divided=3), release="13.1"), [])
        self.assertIn("asks for 2", self.complaints(self.found(static=20000), release="13.1")[0])
        self.assertIn("asks for 3", self.complaints(self.found(least=3))[0])

    def test_exceptions_of_launch_bounds_are_needed(self):
        name, kernel = "plain_forward_kernel<8, float>", sass_code.Kernel(threads=128, least=3, registers=80)
        self.assertEqual(list(lint.broken_rules("sm_80", name, kernel, 99 << 10)), [])
        self.assertIn("take it out of FEWER_BLOCKS", list(lint.broken_rules("sm_80", name, kernel, 10 << 10))[0])
        self.assertIn("asks for 3", list(lint.broken_rules("sm_80", "plain_forward_kernel<4, float>", kernel, 99 << 10))[0])
        self.assertIn("0 blocks fit", list(lint.broken_rules("sm_80", name, kernel, 200 << 10))[0])

    def test_kernels_that_come_and_go(self):
        found = self.found()
        found["sm_80"]["new<1>"] = sass_code.Kernel(threads=32, registers=10)
        del found["sm_90"]["flash<8>"]
        self.assertEqual([text.split(";")[0] for text in self.complaints(found)], ["sm_80: new<1>: not recorded in tests/kernels/sass.txt",
                                                                                  "sm_90: flash<8>: recorded, but not in the program"])

    def test_a_kernel_of_one_architecture(self):
        found = self.found()
        found["sm_90"]["warpgroups<8>"] = sass_code.Kernel(threads=256, least=1, registers=240)
        lint.write(found, "13.0", self.path)
        self.assertIn("warpgroups<8> | only sm_90 | threads 256 x 1 | dynamic 0 | static 0 | registers 240 |", self.path.read_text())
        self.assertEqual(self.complaints(found), [])
        found["sm_90"]["warpgroups<8>"].registers = 241
        self.assertEqual(self.complaints(found), ["sm_90: warpgroups<8>: 241 registers, 240 recorded"])
        found["sm_80"]["warpgroups<8>"] = found["sm_90"].pop("warpgroups<8>")
        self.assertEqual([text.split(";")[0] for text in self.complaints(found)], ["sm_80: warpgroups<8>: not recorded in tests/kernels/sass.txt",
                                                                                  "sm_90: warpgroups<8>: recorded, but not in the program"])

    def test_dynamic_shared_memory_must_be_recorded(self):
        self.path.write_text(self.path.read_text().replace("dynamic 66048", "dynamic 0"))
        self.assertIn("its dynamic shared memory is not in", self.complaints(self.found())[0])

    def test_without_the_tools_it_says_that_it_was_skipped(self):
        with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
            done = subprocess.run([sys.executable, "-c", f"import sys, runpy\nsys.argv = ['sass-lint.py']\nimport shutil\nshutil.which = lambda *a, **b: None\n"
                                   f"runpy.run_path({str(SCRIPTS / 'sass-lint.py')!r}, run_name='__main__')"],
                                  stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": empty}, check=False)
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped: cuobjdump", done.stdout)


if __name__ == "__main__":
    unittest.main()
