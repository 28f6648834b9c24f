#!/usr/bin/env python3
"""Tests scripts/plant.py and the selection of scripts/mutations.sh on a tree of two files and a table of a few bugs."""
import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPTS))
import plant  # noqa: E402
SUM = "int sum(int a, int b) {\n  int c = a;\n\n  c += b;\n  return c;\n}\nint twice(int a) {\n  return sum(a, a);\n}\n"
MAIN = "int main() {\n  return sum(1, 2);\n}"  # no newline at the end
TABLE = """\
# Planted bugs of a tree of two files.

[2-addend-forgotten]
trap: a: sum of one number
verify: tensor norm
note: Only the first addend is left.
caught_by: unit/sum_test.cpp
file: code/sum.cpp
find:
      c += b;
replace:

[10-in-two-files]
trap: sums of differences
file: code/sum.cpp
find:
      return c;
    }
replace:
      c -= 1;

      return c;
    }
find:
      int c = a;

      c += b;
replace:
      int c = a - b;
file: code/main.cpp
find:
      return sum(1, 2);
    }
replace:
      return 3;
    }
"""
PATCH = """\
# a sum of three
# verify: - arithmetic
--- a/code/main.cpp
+++ b/code/main.cpp
@@ -1,3 +1,3 @@
 int main() {
-  return sum(1, 2);
+  return sum(1, 3);
 }
\\ No newline at end of file
--- /dev/null
+++ b/code/new.cpp
@@ -0,0 +1 @@
+int three;
"""


def entry(name, find, replace="      return 0;", file="code/sum.cpp"):
    return f"[{name}]\ntrap: a trap\nfile: {file}\nfind:\n{find}\nreplace:\n{replace}\n"


class PlantTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.scratch.name)
        for folder in ("code", "scripts", "tests/mutations", "tests/unit", "tests/parity"):
            (self.tree / folder).mkdir(parents=True)
        plant.ROOT, plant.BUGS = self.tree, self.tree / "tests/mutations"
        self.write("code/sum.cpp", SUM)
        self.write("code/main.cpp", MAIN)
        self.write("tests/mutations/code.txt", TABLE)
        for file in ("unit/sum_test.cpp", "unit/twice_test.cpp", "parity/sum_test.cpp"):
            self.write(f"tests/{file}", "")

    def tearDown(self):
        self.scratch.cleanup()

    def write(self, path, text):
        (self.tree / path).write_bytes(text.encode())

    def read(self, path):
        return (self.tree / path).read_bytes().decode()

    def run_tool(self, *arguments):
        """Exit status, stdout and stderr. In this process, because starting python is slow on a busy machine."""
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = plant.main([str(argument) for argument in arguments])
        return status, out.getvalue(), errors.getvalue()

    def succeed(self, *arguments):
        status, out, errors = self.run_tool(*arguments)
        self.assertEqual((status, errors), (0, ""))
        return out

    def refuse(self, message, *arguments):
        status, _, errors = self.run_tool(*arguments)
        self.assertIn(message, errors)
        self.assertEqual(status, 1)

    def refuse_table(self, message, table):
        self.write("tests/mutations/code.txt", table)
        self.refuse(message, "--check")

    def test_a_table_that_applies(self):
        self.succeed("--check")
        self.assertEqual(self.succeed("--list"), "2-addend-forgotten\n10-in-two-files\n")
        self.assertEqual(self.succeed("--list", "two", "three"), "10-in-two-files\n")
        self.assertEqual(self.succeed("--table"), "2-addend-forgotten\tcode/sum.cpp\ta: sum of one number\ttensor norm\tunit/sum_test.cpp\n"
                         "10-in-two-files\tcode/sum.cpp code/main.cpp\tsums of differences\t\t\n")

    def test_plant_and_take_back(self):
        self.succeed("--plant", "2-addend-forgotten", self.tree)
        self.assertEqual(self.read("code/sum.cpp"), SUM.replace("  c += b;\n", ""))
        self.refuse("2-addend-forgotten is still planted", "--plant", "10-in-two-files", self.tree)
        self.refuse("10-in-two-files is not planted", "--take-back", "10-in-two-files", self.tree)
        self.succeed("--take-back", "2-addend-forgotten", self.tree)
        self.assertEqual(self.read("code/sum.cpp"), SUM)

    def test_pairs_in_two_files(self):
        self.succeed("--plant", "10-in-two-files", self.tree)
        self.assertEqual(self.read("code/sum.cpp"), SUM.replace("int c = a;\n\n  c += b;", "int c = a - b;").replace("return c;", "c -= 1;\n\n  return c;"))
        self.assertEqual(self.read("code/main.cpp"), MAIN.replace("sum(1, 2)", "3"))
        self.succeed("--take-back", "10-in-two-files", self.tree)
        self.assertEqual((self.read("code/sum.cpp"), self.read("code/main.cpp")), (SUM, MAIN))
        self.assertFalse((self.tree / ".planted").exists())

    def test_a_file_put_back_is_compiled_again(self):
        os.utime(self.tree / "code/sum.cpp", (1, 1))
        self.succeed("--plant", "2-addend-forgotten", self.tree)
        planted = (self.tree / "code/sum.cpp").stat().st_mtime_ns
        self.succeed("--take-back", "2-addend-forgotten", self.tree)
        self.assertGreaterEqual((self.tree / "code/sum.cpp").stat().st_mtime_ns, planted)

    def test_a_patch(self):
        self.write("tests/mutations/3-patch.patch", PATCH)
        self.succeed("--check")
        self.assertIn("3-patch\tcode/main.cpp code/new.cpp\ta sum of three\t- arithmetic\t\n", self.succeed("--table"))
        self.succeed("--plant", "3-patch", self.tree)
        self.assertEqual((self.read("code/main.cpp"), self.read("code/new.cpp")), (MAIN.replace("2", "3"), "int three;\n"))
        self.succeed("--take-back", "3-patch", self.tree)
        self.assertEqual(self.read("code/main.cpp"), MAIN)
        self.assertFalse((self.tree / "code/new.cpp").exists())
        self.write("code/main.cpp", MAIN.replace("2", "4"))
        self.refuse("3-patch: ", "--check")
        self.refuse("3-patch: ", "--plant", "3-patch", self.tree)
        self.assertFalse((self.tree / ".planted").exists())

    def test_learning_what_catches_a_bug(self):
        self.write("tests/mutations/3-patch.patch", PATCH)
        results = ("# tree 0\n| planted | trap | caught by | caught |\n|---|---|---|---|\n| nothing, test_unit | - | - | - |\n"
                   "| 2-addend-forgotten | a: sum of one number | unit/twice_test.cpp: twice: sums of two | yes |\n"
                   "| 3-patch | a sum of three | parity/sum_test.cpp: sums agree | yes |\n"
                   "| 10-in-two-files | sums of differences | unit/sum_test.cpp: sums (ran too long) | yes |\n| 99-gone | a trap | unit/sum_test.cpp: sums | yes |\n")
        self.write("results", results)
        self.succeed("--learn", self.tree / "results")
        self.succeed("--check")
        self.assertEqual(self.read("tests/mutations/code.txt"), TABLE.replace("unit/sum_test.cpp", "unit/twice_test.cpp"))
        self.assertEqual(self.read("tests/mutations/3-patch.patch"), PATCH.replace("# verify", "# caught_by: parity/sum_test.cpp\n# verify"))
        for nothing in ("-", "unit: before its first test"):
            self.write("results", results.replace("unit/sum_test.cpp: sums (ran too long)", nothing).replace("| yes |\n| 99", "| NO |\n| 99"))
            self.succeed("--learn", self.tree / "results")
            self.assertIn("3-patch\tcode/main.cpp code/new.cpp\ta sum of three\t- arithmetic\tparity/sum_test.cpp\n", self.succeed("--table"))
            self.assertEqual(self.read("tests/mutations/code.txt").count("caught_by"), 1)

    def test_a_file_of_tests_that_is_gone(self):
        (self.tree / "tests/unit/sum_test.cpp").unlink()
        self.refuse("2-addend-forgotten: caught_by: tests/unit/sum_test.cpp: no such file", "--check")
        self.refuse_table("2-addend-forgotten: caught_by needs a file like unit/sum_test.cpp, not unit: sums", TABLE.replace("unit/sum_test.cpp", "unit: sums"))

    def test_text_to_find_missing_or_found_twice(self):
        self.write("code/sum.cpp", SUM + SUM)
        self.refuse("2-addend-forgotten: code/sum.cpp: the lines to find occur 2 times, not once: c += b;", "--check")
        self.refuse("2-addend-forgotten: code/sum.cpp: the lines to find occur 2 times", "--plant", "2-addend-forgotten", self.tree)
        self.write("code/sum.cpp", SUM.replace("c += b", "c -= b"))
        self.refuse("2-addend-forgotten: code/sum.cpp: the lines to find occur 0 times, not once: c += b;", "--check")
        self.refuse("10-in-two-files: code/sum.cpp: the lines to find occur 0 times, not once: int c = a;", "--check")
        self.refuse("2-addend-forgotten: code/sum.cpp: the lines to find occur 0 times", "--plant", "2-addend-forgotten", self.tree)
        self.assertFalse((self.tree / ".planted").exists())
        self.refuse_table("1-a: code/other.cpp: no such file", entry("1-a", "      return c;", file="code/other.cpp"))

    def test_nothing_is_planted_unless_every_pair_applies(self):
        self.write("code/main.cpp", MAIN.replace("sum(1, 2)", "0"))
        self.refuse("10-in-two-files: code/main.cpp", "--plant", "10-in-two-files", self.tree)
        self.assertEqual(self.read("code/sum.cpp"), SUM)

    def test_unknown_names(self):
        self.refuse("no bug is called 3-nothing", "--plant", "3-nothing", self.tree)
        self.refuse("no bug is called 3-nothing", "--take-back", "3-nothing", self.tree)
        self.assertEqual(self.succeed("--list", "nothing"), "")

    def test_malformed_tables(self):
        self.refuse_table("10-in-two-files is there twice", TABLE + entry("10-in-two-files", "      return c;"))
        self.refuse_table("code.txt:1: a bug needs a name like [12-what-is-wrong]", "[what]\n")
        self.refuse_table("code.txt:2: unknown line: colour: red", "[1-a]\ncolour: red\n")
        self.refuse_table("code.txt:1: a bug begins with its [name]", "trap: early\n")
        self.refuse_table("code.txt:3: trap is there twice", "[1-a]\ntrap: b\ntrap: c\n")
        self.refuse_table("code.txt:2: find needs a file above it", "[1-a]\nfind:\n")
        self.refuse_table("code.txt:3: replace needs a find above it", "[1-a]\nfile: code/sum.cpp\nreplace:\n")
        self.refuse_table("code.txt:5: replace needs a find above it", "[1-a]\nfile: code/sum.cpp\nfind:\nreplace:\nreplace:\n")
        self.refuse_table("code.txt:3: find takes its lines from below", "[1-a]\nfile: code/sum.cpp\nfind: return c;\n")
        self.refuse_table("1-a: no trap", "[1-a]\n")
        self.refuse_table("1-a: nothing to replace", "[1-a]\ntrap: b\n")
        self.refuse_table("1-a: code/sum.cpp: nothing to find", "[1-a]\ntrap: b\nfile: code/sum.cpp\nfind:\nreplace:\n")
        self.refuse_table("1-a: code/sum.cpp: a find without its replace", "[1-a]\ntrap: b\nfile: code/sum.cpp\nfind:\n      return c;\n")
        self.refuse_table("1-a: code/sum.cpp: replaces lines by themselves", entry("1-a", "      return c;", "      return c;"))
        overlapping = entry("1-a", "      c += b;\n      return c;") + "find:\n      return c;\nreplace:\n"
        self.refuse_table("1-a: code/sum.cpp: two pairs overlap", overlapping)

    def test_slices(self):
        self.write("tests/mutations/code.txt", "".join(entry(f"{i}-bug", "      return c;") for i in (3, 11, 1, 20, 4)))
        self.assertEqual(self.succeed("--list", "--slice", "1/2"), "1-bug\n4-bug\n20-bug\n")
        self.assertEqual(self.succeed("--list", "--slice", "2/2"), "3-bug\n11-bug\n")
        self.assertEqual(self.succeed("--list", "--slice", "2/2", "1"), "11-bug\n")
        for slice_ in ("0/2", "3/2", "2", "a/b"):
            self.refuse(f"--slice needs K/N with 1 <= K <= N, not {slice_}", "--list", "--slice", slice_)

    def test_the_selection_of_mutations_sh(self):
        for script in ("plant.py", "mutations.sh"):
            shutil.copy(SCRIPTS / script, self.tree / "scripts")
        result = subprocess.run([self.tree / "scripts/mutations.sh", "--slice", "2/2", "--list"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "10-in-two-files\n", ""))


if __name__ == "__main__":
    unittest.main()
