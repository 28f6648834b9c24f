#!/usr/bin/env python3
"""Tests scripts/mutate.py: what the lexer hides, the bugs of each operator on a few lines, ids that stay, and 200 sites of the tree planted and taken back."""
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import cpp_source  # noqa: E402
import mutate  # noqa: E402
import mutation_operators  # noqa: E402
import plant  # noqa: E402


def changes(operator, body, head="void f()"):
    """The bodies that an operator makes of the body of a function."""
    text = f"{head} {{\n{body}\n}}\n"
    result = []
    for site in mutation_operators.find_sites("kernels/a.cpp", text):
        if site.operator == operator:
            changed = site.apply(text)
            result.append(changed[len(head) + 3:len(changed) - 3])
    return result


class LexerTest(unittest.TestCase):
    def test_comments_literals_and_directives_are_masked(self):
        text = "#define LESS(a) \\\n  a < 1\nint a = 1'000; // b < c\n/* d\n+ e */ auto f = \"g < \\\"h\\\" // i\";\nchar j = '\\'';\nauto k = R\"x(l \" )\" + m)x\";\n"
        expected = ("                 \n       \nint a = 1'000;         \n    \n       auto f = \"              \";\nchar j = '  ';\nauto k = R" + " " * 15 + "\";\n")
        self.assertEqual(cpp_source.masked(text), expected)
        self.assertEqual(len(cpp_source.masked(text)), len(text))

    def test_numbers(self):
        self.assertEqual([token.text for token in cpp_source.tokenize("1'0 1e-5f 0x1F .5 a->b x<=>y")], ["1'0", "1e-5f", "0x1F", ".5", "a", "->", "b", "x", "<=>", "y"])

    def test_functions(self):
        text = """\
namespace a::b {
int declared(int x = 3 < 4);
enum class E { kOne = 1 + 1 };
constexpr int kTable[] = {1 + 2, 3};
template <class T, int N = 3>
struct S : Base<T> {
  explicit S(int a) : a_(a), b_{a + 1} { run(); }
  ~S() override { stop(); }
  bool operator==(const S& other) const { return true; }
  int operator()(int x) { return x; }
  int a_ = 0, b_{1};
};
template <class T>
std::vector<T> S<T>::all() const noexcept {
  struct Local { int g() { return 1; } };
  return {};
}
template <>
int size<float>() { return 4; }
const auto lambda = [](int x) { return x; };
TRIREME_LEVEL(avx2)
extern "C" {
int plain() { return 1; }
}
}  // namespace a::b
"""
        names = [function.name for function in cpp_source.Source(text).functions]
        self.assertEqual(names, ["S::S", "S::~S", "S::operator==", "S::operator()", "all", "size<float>", "lambda", "plain"])

    def test_an_initialiser_of_a_member_belongs_to_the_constructor(self):
        source = cpp_source.Source("A::A(int a) : a_(a), b_{a + 1} {\n  run();\n}\n")
        self.assertEqual([function.name for function in source.functions], ["A::A"])
        self.assertEqual([site.operator for site in mutation_operators.find_sites("kernels/a.cpp", source.text)], ["bound"])


class OperatorTest(unittest.TestCase):
    def expect(self, operator, body, *expected):
        self.assertEqual(changes(operator, body), list(expected))

    def test_wait(self):
        self.expect("wait", "  sum.start(ctx)->wait(ctx);\n  run();", "\n  run();")
        self.expect("wait", "  run();  __syncthreads();", "  run();  ")
        self.expect("wait", "  if (busy) cp_async_wait<0>();\n  else ::fence();", "  if (busy) {}\n  else ::fence();", "  if (busy) cp_async_wait<0>();\n  else {}")
        self.expect("wait", '  check(cudaStreamSynchronize(s), "cudaStreamSynchronize");\n  a();', "\n  a();")
        self.expect("wait", "  ready_.notify_all();\n  changed_.wait(lock, [&] { return x; });", "\n  changed_.wait(lock, [&] { return x; });", "  ready_.notify_all();\n")
        self.expect("wait", "  const bool ended = work.wait(ctx);\n  return wait(1);\n  std::lock_guard lock(mutex_);\n  await_ = 1;")

    def test_compare(self):
        self.expect("compare", "  if (a < b) return;", "  if (a <= b) return;")
        self.expect("compare", "  return a >= b;", "  return a > b;")
        self.expect("compare", "  x = a == b ? 1 : 2;", "  x = a != b ? 1 : 2;")
        self.expect("compare", "  std::vector<int> a;\n  a = b << 2;\n  p->q();\n  f<T>(x);\n  auto c = a <=> b;\n  g([]<class U>(U u) {});")
        self.expect("compare", '  static_assert(a < b);\n  TRIREME_CHECK(a < b, "a", c > d);\n  throw Error(a < b);\n  out << "a" << (a < b);\n  print("x", a < b);')
        self.expect("compare", "#if A < B\n  run();  // a < b\n#endif")

    def test_term(self):
        self.expect("term", "  x = a + b;", "  x = a;")
        self.expect("term", "  x = f(a).b[1] - g(c);", "  x = f(a).b[1];")
        self.expect("term", "  x = a * (b + c);", "  x = a;", "  x = a * (b);")
        self.expect("term", "  x = a + b * c;", "  x = a + b;")
        self.expect("term", "  x = static_cast<float>(a) / n;", "  x = static_cast<float>(a);")
        self.expect("term", '  x = "a" + b + c;\n  y = a + to_string(b);\n  z = a + \'b\';\n  int* p = -a;\n  ++p;\n  T* q = a + 1;')

    def test_bound(self):
        self.expect("bound", "  x[i + 1] = y[n - 1];", "  x[i] = y[n - 1];", "  x[i + 1] = y[n];")
        self.expect("bound", "  for (int i = begin; i < end; ++i) run(i);", "  for (int i = begin + 1; i < end; ++i) run(i);",
                    "  for (int i = begin; i < end - 1; ++i) run(i);")
        self.expect("bound", "  for (int i = n - 1; i >= 0 && j; --i) run(i);", "  for (int i = n; i >= 0 && j; --i) run(i);",
                    "  for (int i = n - 1; i >= 0 + 1 && j; --i) run(i);")
        self.expect("bound", "  for (const int i : all) run(i);\n  x = a + 1.0;\n  y = a + 1 * b;\n  for (;;) run(0);")

    def test_index(self):
        self.expect("index", "  x = all[rank];", "  x = all[(rank + 1) % all.size()];", "  x = all[0];")
        self.expect("index", "  a.b[static_cast<size_t>(stage)] = 1;", "  a.b[(static_cast<size_t>(stage) + 1) % a.b.size()] = 1;", "  a.b[0] = 1;")
        self.expect("index", "  send(to, rank, x);\n  send(action.microbatch);", "  send(to, 0, x);\n  send(action.microbatch);", "  send(to, rank, x);\n  send(0);")
        self.expect("index", "  if (rank) return;\n  g([rank] { return 1; });\n  x = rank + 1;\n  all[other];\n  rank.run();\n  special(source);")

    def test_condition(self):
        self.expect("condition", "  if (a) return;", "  if (!(a)) return;")
        self.expect("condition", "  if (a < b) {\n    run();\n  }", "  if (!(a < b)) {\n    run();\n  }")
        self.expect("condition", "  x = a && b;\n  y = c || d;", "  x = a || b;\n  y = c || d;", "  x = a && b;\n  y = c && d;")
        self.expect("condition", "  if (a == b) return;\n  if (a) throw b;\n  if (auto c = d; c) return;\n"
                    "  if (const auto* e = f()) return;\n  if (a) {\n    b();\n    c();\n  }")
        self.expect("condition", "  if (a)\n    b();\n  else\n    c();\n  f(T&& x);")

    def test_only_bodies_of_functions(self):
        text = "int f(int n = 1 + 2);\nconstexpr bool kA = 1 < 2;\nstruct A {\n  int b = c + d;\n  virtual void wait(int rank) = 0;\n};\n"
        self.assertEqual(mutation_operators.find_sites("kernels/a.h", text), [])


SUM = "int sum(int a, int b) {\n  // adds\n  return a + b;\n}\nint more(int a) { return a < 3 ? a * a : a; }\nint more(long a) { return a < 3 ? a * a : a; }\n"


class ToolTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for file in ("kernels/cpu/sum.cpp", "parallel/comm/sum.cpp", "trainer/plan/sum.h"):
            self.write(file, SUM)

    def write(self, file, text):
        (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / file).write_text(text)

    def tool(self, *arguments, status=0):
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            self.assertEqual(mutate.main(["--tree", str(self.tree), *map(str, arguments)]), status, errors.getvalue())
        return out.getvalue() + errors.getvalue()

    def ids(self, *arguments):
        return [line.split()[0] for line in self.tool(*arguments).splitlines() if line and not line.startswith("|")]

    def test_ids_stay_while_other_lines_change(self):
        before = self.ids("--list", "--module", "kernels")
        self.assertEqual(len(before), len(set(before)))
        self.assertEqual(sorted(id_.split("-")[0] for id_ in before), ["compare", "compare", "term", "term", "term"])
        self.write("kernels/cpu/sum.cpp", "#include <a>\n\nint other(int x) { return x * 4 - x; }\n" + SUM.replace("  // adds\n", "  if (a > 7) b = a * 2;\n"))
        after = self.ids("--list", "--module", "kernels")
        self.assertLess(set(before), set(after))
        self.write("kernels/cpu/sum.cpp", SUM.replace("a + b", "b + a"))
        self.assertEqual(len(set(before) - set(self.ids("--list", "--module", "kernels"))), 1)

    def test_counts(self):
        self.assertIn("| kernels/cpu | 0 | 2 | 3 | 0 | 0 | 0 | 5 |\n", self.tool("--count"))
        self.assertIn("| all | 0 | 6 | 0 | 0 | 0 | 0 | 6 |\n", self.tool("--count", "--operator", "compare"))
        self.assertIn("mutate: no site of wait in the tree", self.tool("--count", "--operator", "wait", status=1))

    def test_samples_are_even_and_the_same_each_time(self):
        drawn = self.ids("--sample", 6, "--seed", 1)
        self.assertEqual(drawn, self.ids("--sample", 6, "--seed", 1))
        self.assertEqual(drawn[:4], self.ids("--sample", 4, "--seed", 1))
        self.assertNotEqual(drawn, self.ids("--sample", 6, "--seed", 2))
        sites = mutate.all_sites(self.tree)
        self.assertEqual(sorted(sites[id_].module() for id_ in drawn), ["kernels/cpu"] * 2 + ["parallel/comm"] * 2 + ["trainer/plan"] * 2)
        self.assertEqual(len(self.ids("--sample", 100)), len(sites))

    def test_show_plant_and_take_back(self):
        id_ = next(id_ for id_ in self.ids("--list", "--module", "parallel") if id_.startswith("term"))
        self.assertIn("\n-  return a + b;\n+  return a;\n", self.tool("--show", id_))
        self.tool("--plant", id_, self.tree)
        self.assertEqual((self.tree / "parallel/comm/sum.cpp").read_text(), SUM.replace("a + b", "a"))
        other = self.ids("--list", "--module", "kernels")[0]
        self.assertIn(f"{id_} is still planted", self.tool("--plant", other, self.tree, status=1))
        self.assertIn("is not planted", self.tool("--take-back", other, self.tree, status=1))
        self.tool("--take-back", id_, self.tree)
        self.assertEqual((self.tree / "parallel/comm/sum.cpp").read_text(), SUM)
        self.assertIn("mutate: no site has the id wait-0", self.tool("--show", "wait-0", status=1))

    def test_report(self):
        rows = [("compare-1", "caught", "parallel: sums"), ("compare-2", "ran too long", "parallel: waits"), ("term-3", "survived", None),
                ("term-4", "not built", None), ("term-5", "no change", None)]
        lines = [json.dumps(dict(commit="c", id="nothing", outcome="passed", test="test_parallel", seconds=1))]
        lines += [json.dumps(dict(commit="c", id=id_, module="parallel/comm", operator=id_.split("-")[0], file="a.cpp", line=3, function="f", outcome=outcome, test=test,
                                  programs=["test_parallel"], seconds=2, diff="-a + b\n+a\n")) for id_, outcome, test in rows]
        self.write("results", "\n".join(lines) + "\n")
        text = self.tool("--report", self.tree / "results")
        self.assertIn("5 generated bugs, commit c, 2 s each\n", text)
        self.assertIn("| parallel/comm | 5 | 1 | 1 | 1 | 67% | 1 | 1 |\n", text)
        self.assertIn("| term | 3 | 0 | 0 | 1 | 0% | 1 | 1 |\n", text)
        self.assertIn("term-3 survived test_parallel: a.cpp:3, f\n\n-a + b\n+a\n", text)
        self.write("results", "no json\n")
        self.assertIn("is no results file", self.tool("--report", self.tree / "results", status=1))

    def test_a_survivor_is_shown_to_the_programs_that_were_left_out(self):
        site = next(iter(mutate.all_sites(self.tree).values()))
        path, programs = self.tree / "results", ["test_parallel", "test_parity"]
        for outcome, ran, left in (("survived", programs[:1], programs[1:]), ("survived", programs, []), ("no change", programs[:1], programs[1:]),
                                   ("caught", programs[:1], []), ("not built", programs[:1], [])):
            path.write_text(json.dumps(dict(commit="c", id=site.id, outcome=outcome, programs=ran)) + "\n")
            self.assertEqual(mutate.Results(path, "c").left(site, programs), (left, outcome))
            self.assertEqual(mutate.Results(path, "d").left(site, programs), (programs, "no change"))

    def test_programs(self):
        self.assertEqual(mutate.programs_for("kernels/cuda/norm.cu"), ["test_kernels", "test_trace", "test_cuda"])
        self.assertEqual(mutate.programs_for("kernels/cpu/norm.cpp"), ["test_kernels"])
        self.assertEqual(mutate.programs_for("parallel/mesh.cpp"), ["test_parallel", "test_parity"])
        self.assertEqual(mutate.programs_for("trainer/plan/a/b.cpp"), ["test_plan"])
        self.assertEqual(mutate.programs_for("trainer/loop/step.cpp"), ["test_unit", "test_parity"])


RUN = """\
int sum(int a, int b, int* c) {
  run(a * b);
  return a + b;
}
bool g(int a) { return a < 3; }
int h(int i) { return d[i + 1]; }
bool k() { return e && f; }
"""
# The build makes a program of the source, which it refuses without "i + 1" and which it cannot tell from the original by "&&".
CMAKE = """\
#!/bin/sh
cd "$(dirname "$0")/.."
grep -q 'i + 1' kernels/cpu/sum.cpp || exit 1
cp tests.sh build/tests/test_kernels
grep -v '^bool k' kernels/cpu/sum.cpp | cksum | sed 's/^/# /' >> build/tests/test_kernels
"""
# It fails without "a + b", and does not end without "a < 3".
TESTS = """\
#!/bin/sh
echo '<TestCase name="sums &lt; of two">' > "$6"
cd "$(dirname "$0")/../.."
grep -q 'a < 3' kernels/cpu/sum.cpp || exec sleep 60
exec grep -q 'a + b' kernels/cpu/sum.cpp
"""


class RunTest(unittest.TestCase):
    def test_run(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        tree = pathlib.Path(scratch.name)
        for folder in ("kernels/cpu", "build/tests", "bin"):
            (tree / folder).mkdir(parents=True)
        source, results = tree / "kernels/cpu/sum.cpp", tree / "results"
        source.write_text(RUN)
        for file, text in (("bin/cmake", CMAKE), ("tests.sh", TESTS)):
            (tree / file).write_text(text)
            (tree / file).chmod(0o755)
        arguments = ["--tree", str(tree), "--run", "--sample", "9", "--results", str(results), "--limit", "3"]
        with unittest.mock.patch.dict(os.environ, PATH=f"{tree}/bin:{os.environ['PATH']}"), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(mutate.main(arguments + ["--program", "test_unit"]), 0)
            self.assertFalse(results.exists())  # this program tests no file of the tree
            self.assertEqual(mutate.main(arguments), 0)
            first = results.read_text()
            self.assertEqual(mutate.main(arguments), 0)
        self.assertEqual(results.read_text(), first)  # nothing was left
        self.assertEqual(source.read_text(), RUN)
        rows = [json.loads(line) for line in first.splitlines()]
        self.assertEqual((rows[0]["id"], rows[0]["outcome"], rows[0]["test"]), ("nothing", "passed", "test_kernels"))
        test = "kernels: sums < of two"
        self.assertEqual({next(line for line in row["diff"].split("\n")[3:] if line.startswith("+")): (row["outcome"], row["test"]) for row in rows[1:]},
                         {"+  run(a);": ("survived", None), "+  return a;": ("caught", test), "+bool g(int a) { return a <= 3; }": ("ran too long", test),
                          "+int h(int i) { return d[i]; }": ("not built", None), "+bool k() { return e || f; }": ("no change", None)})


class TreeTest(unittest.TestCase):
    def test_sites_of_the_tree_are_planted_and_taken_back(self):
        files = mutate.source_files(ROOT)
        planted = 0
        with tempfile.TemporaryDirectory() as scratch:
            tree = pathlib.Path(scratch)
            for file in files[::len(files) // 80]:
                original = (ROOT / file).read_bytes()
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                (tree / file).write_bytes(original)
                sites = mutation_operators.find_sites(file, original.decode())
                self.assertEqual(len({site.id for site in sites}), len(sites))
                for site in sites[::max(1, len(sites) // 7)][:7]:
                    mutant = mutate.Mutant(site)
                    plant.plant(mutant, tree)
                    self.assertNotEqual((tree / file).read_bytes(), original, site.id)
                    plant.take_back(mutate.Planted(site.id, tree), tree)
                    self.assertEqual((tree / file).read_bytes(), original, site.id)
                    planted += 1
        self.assertGreaterEqual(planted, 200)


if __name__ == "__main__":
    unittest.main()
