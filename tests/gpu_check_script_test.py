#!/usr/bin/env python3
"""Runs scripts/gpu-check.sh with a fake nvidia-smi and fake programs: what is left after a kill or a signal, which parts are skipped, the exit code.
  gpu_check_script_test.py [--all | GpuCheck.test_NAME...]    without arguments one test of each kind"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts/gpu-check.sh"

NVIDIA_SMI = """#!/bin/bash
case "$*" in
  topo*) echo "GPU0 X NV18" ;;
  *--query-gpu=*event_reasons*) [ -z "$FAKE_OLD_DRIVER" ] || exit 2
    while :; do echo "0, 1755, 2619, 690.5, 66, 0x0000000000000004, 98, 1000"; case "$*" in *-l\\ 1*) sleep 0.2 ;; *) exit ;; esac; done ;;
  *--query-gpu=*throttle_reasons*) while :; do echo "0, 1100, 2619, 400, 91, 0x0000000000000040, 98, 1000"; case "$*" in *-l\\ 1*) sleep 0.2 ;; *) exit ;; esac; done ;;
  *--query-gpu=*) for ((i = 0; i < ${FAKE_GPUS:-1}; ++i)); do
    echo "$i, NVIDIA H100 80GB HBM3, GPU-$i, 9.0, 81559 MiB, 580.65.06, ${FAKE_MIG:-Disabled}, Enabled, ${FAKE_ECC:-0}, 5, 16"; done ;;
  *) echo "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: ${FAKE_CUDA:-13.0} |" ;;
esac
"""
TRIREME = """#!/bin/bash
echo "trireme $*" >> "$FAKE_CALLS"
directory= ; bad=
for word in "$@"; do
  case $word in run.directory=*) directory=${word#*=} ;; esac
  [ -z "$FAKE_BAD" ] || [[ $word != *"$FAKE_BAD"* ]] || bad=yes
done
attention='"cudnn_attention":null'  # FAKE_CUDNN: this build has it; bad: one shape differs
if [[ "$*" == *kernels.attention=cudnn* ]]; then
  builtin=${bad:+'{"shape":"backward","reason":"differs","ranks":1,"mismatch":true}'}
  attention='"cudnn_attention":{"cudnn":[{"shape":"forward, 4 x 4096 tokens","ranks":1,"difference":0.25}],"builtin":['"$builtin"']}'
fi
case "$1 $2" in
  "--version "*) printf 'trireme 0.1.0 (abc)\\nGPU         CUDA 13.0.88 for architectures 90-real, NCCL 2.28.9%s\\n' "${FAKE_CUDNN:+, cuDNN 9.19.0}" ;;
  "config show") echo "  micro_batch_size: 4" ;;
  "data build") mkdir -p data ;;
  "bench step") echo '{"training":{"micro_batch_size":4},"tokens_per_second":{"median":51000.0,"low":1},"model_tflops":400.0,"share_of_gemm_ceiling":0.7,"mfu":0.43,'"$attention,"\
"\\"loss\\":{\\"first\\":10.5,\\"last\\":${bad:+1}9.25}}" ;;
  "bench kernels") echo '{"gemm":[{"product":"square","rows":64,"forward_tflops":600.0}],"gemm_ceiling_tflops":600.0,'\
'"attention":[{"head_size":128,"sequence":4096,"forward_tflops":300.0,"backward_tflops":200.0}],'"$attention,"'"copy_gb_per_second":2500.0,'\
'"bandwidth":[{"kernel":"add","share_of_copy":0.9}]}' ;;
  "bench comm") echo '{"comm":[{"operation":"all_reduce","bytes":268435456,"bus_gb_per_second":350.0}]}' ;;
  "train "*) mkdir -p "$directory"
    if [[ "$*" == *training.steps=1000000* ]]; then  # an endless run, whose rank 1 the script disturbs
      for step in {1..25}; do echo "{\\"step\\": $step, \\"loss\\": 1.5}"; done > "$directory/metrics.jsonl"
      OMPI_COMM_WORLD_RANK=1 bash -c 'while :; do sleep 0.1; done' "$@" &
      while kill -0 $! 2>/dev/null && ! grep -q '^State:.*T' /proc/$!/status; do sleep 0.1; done
      [ -n "$FAKE_BLIND" ] && exit 70
      echo "rank 1 (gpu1, pid $!) has died in step 25" >&2
      exit 70
    fi
    for step in 1 2 3; do echo "{\\"step\\": $step, \\"loss\\": ${bad:+1}$step.5, \\"grad_norm\\": 1.0}"; done > "$directory/metrics.jsonl"
    [ -z "$FAKE_HANG_IN_TRAIN" ] || exec sleep 300 ;;
  "eval "*) echo '{"validation_loss":2.5}' ;;
  "generate "*) echo "the same text" ;;
esac
"""
TESTS = """#!/bin/bash
case "$1" in
  --list*) [ -n "$FAKE_NO_CASES" ] || printf 'kernel one\\nkernel two, with a comma\\n%s' "$FAKE_CASES"; exit 2 ;;
  boom) echo "CUDA error: an illegal memory access was encountered"; exit 42 ;;
  hang) echo $$ > "$FAKE_CALLS.hang"; exec sleep 300 ;;
esac
echo "${0##*/} $1" >> "$FAKE_CALLS"
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.tools, self.programs, self.output = (self.folder / name for name in ("tools", "programs", "output"))
        for place, name, text in ((self.tools, "nvidia-smi", NVIDIA_SMI), (self.tools, "python3", "#!/bin/sh\nexit 1\n"), (self.programs, "trireme", TRIREME),
                                  (self.programs, "test_kernels_gpu", TESTS), (self.programs, "test_cuda_gpu", TESTS)):
            self.program(place / name, text)
        for library in ("libcublasLt.so.13", "libnccl.so.2"):
            self.program(self.folder / "lib64" / library, "")
        (self.programs / "BUILD").write_text("version 0.1.0\ncommit abc\n")

    def program(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments, bundle=True, **fakes):
        # No tool of this machine but those of the system: a CUDA Toolkit or a PyTorch here may not decide what is skipped.
        environment = {"PATH": f"{self.tools}:/usr/bin:/bin", "HOME": str(self.folder), "FAKE_CALLS": str(self.folder / "calls"), "CUDA_HOME": str(self.folder),
                       **{f"FAKE_{name.upper()}": str(value) for name, value in fakes.items()}}
        command = [str(SCRIPT), "--work", str(self.folder / "work"), "--output", str(self.output), *arguments]
        # A shell in the background starts programs with SIGINT ignored, and bash cannot trap a signal that was ignored.
        return subprocess.Popen(command + (["--bundle", str(self.programs)] if bundle else []), env=environment, cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def run_check(self, *arguments, **fakes):
        process = self.start(*arguments, **fakes)
        out, err = process.communicate(timeout=500)
        return process.returncode, out, err

    def results(self):
        return [json.loads(line) for line in (self.output / "results.jsonl").read_text().splitlines()]

    def checks(self, result, part=None):
        return [row["check"] for row in self.results() if row.get("result") == result and "check" in row and part in (None, row["part"])]

    def report(self):
        return (self.output / "report.md").read_text()

    def calls(self):
        return (self.folder / "calls").read_text()

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def hanging(self):
        return pathlib.Path(str(self.folder / "calls") + ".hang")

    def test_all_parts_pass(self):
        code, out, err = self.run_check()
        self.assertEqual(code, 0, out + err)
        self.assertEqual(self.checks("fail"), [])
        ended = [row["part"] for row in self.results() if row.get("event") == "end"]
        self.assertEqual(ended, ["probe", "build", "smoke", "step", "kernels", "bench", "ranks", "sanitizer", "parity", "pytorch", "profile"])
        report = self.report()
        for text in ("NVIDIA H100 80GB HBM3", "5.1e+04 tokens/s", "power cap", "690.5 W", "2 of 2 cases"):
            self.assertTrue(text in report, text)
        self.assertIn("compute-sanitizer is not installed", report)
        self.assertIn("torch", report)
        self.assertIn("nsys", report)
        self.assertIn("kernels.cuda_graph=true", self.calls())

    def test_every_row_of_a_table_is_reported(self):
        self.run_check("--only", "bench")
        self.assertIn("add, share of copy bandwidth", self.report())  # the last row of its table

    def test_cudnn_is_compared_and_timed_where_the_library_and_the_build_have_it(self):
        self.run_check("--only", "bench")
        self.assertIn("cuDNN attention", self.checks("skip", "bench"))
        self.assertNotIn("attention=cudnn", self.calls())
        self.program(self.folder / "lib64" / "libcudnn.so.9", "")
        self.run_check("--only", "bench")
        self.assertIn("cuDNN attention", self.checks("skip", "bench"))  # a build without it
        code, out, err = self.run_check("--only", "step,bench", cudnn=1)
        self.assertEqual(code, 0, out + err)
        for name in ("cuDNN attention agrees with the built-in kernels", "cuDNN attention agrees in a training step"):
            self.assertIn(name, self.checks("pass", "bench"))
        report = self.report()
        for text in ("forward 300 TFLOP/s, 1.000 of the built-in kernels", "1 shapes by cuDNN, largest difference 0.25 of what is allowed", "1.000 x, 5.1e+04 tokens/s"):
            self.assertIn(text, report)
        code, _, _ = self.run_check("--only", "bench", cudnn=1, bad="attention=cudnn")
        self.assertEqual(code, 1)
        self.assertEqual(self.checks("fail", "bench"), ["cuDNN attention agrees with the built-in kernels", "cuDNN attention agrees in a training step"])

    def test_a_crashed_case_fails_without_the_others(self):
        code, _, _ = self.run_check("--only", "kernels", cases="boom\nkernel three\n")
        self.assertEqual(code, 1)
        self.assertEqual([name for name in self.checks("fail", "kernels") if "boom" in name], ["boom"])
        for name in ("kernel one", "kernel two, with a comma", "kernel three"):
            self.assertIn(name, self.checks("pass", "kernels"))
        self.assertIn("illegal memory access", self.report())

    def test_case_names_are_escaped_for_the_test_program(self):
        self.run_check("--only", "kernels")
        self.assertIn("test_kernels_gpu kernel two\\, with a comma", self.calls())

    def test_a_program_without_cases_fails(self):
        code, _, _ = self.run_check("--only", "kernels", no_cases=1)
        self.assertEqual(code, 1)

    def test_a_kill_leaves_the_results_and_the_report_so_far(self):
        process = self.start("--only", "smoke,step,kernels", cases="hang\n")
        self.wait_for(self.hanging().exists, "the kernel tests start")
        self.kill(process)
        self.assertTrue(self.checks("pass", "smoke"))
        self.assertTrue(self.checks("info", "step"))
        self.assertIn("tokens/s", self.report())

    def kill(self, process):
        """kill -9 of the script, which cannot end what it started; then of what it has left running, which still writes to the output."""
        process.kill()
        process.wait(timeout=60)
        while left := self.left_running():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended by itself
            time.sleep(0.01)
        process.communicate(timeout=60)

    def left_running(self):
        """The processes that have this test's environment."""
        mark, found = f"FAKE_CALLS={self.folder}/calls".encode(), []
        for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environment.read_bytes().split(b"\0"):
                    found.append(int(environment.parent.name))
            except OSError:
                pass  # it has ended, or belongs to somebody else
        return found

    def check_signal(self, number, name):
        process = self.start("--only", "smoke,step,kernels", cases="hang\n")
        self.wait_for(self.hanging().exists, "the kernel tests start")
        process.send_signal(number)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 128 + number)
        self.assertIn(f"stopped by {name} in part kernels", self.report())
        self.assertIn("kernel one", self.checks("pass", "kernels"))
        self.assertIn("tokens/s", self.report())
        pid = int(self.hanging().read_text())
        self.wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the hanging case ends")

    def test_sigterm_writes_the_report_and_ends_the_programs(self):
        self.check_signal(signal.SIGTERM, "SIGTERM")

    def test_sigint_writes_the_report_and_ends_the_programs(self):
        self.check_signal(signal.SIGINT, "SIGINT")

    def test_sigterm_in_a_training_run_ends_it(self):
        process = self.start("--only", "smoke", hang_in_train=1)
        self.wait_for(lambda: (self.folder / "calls").exists() and "train" in self.calls(), "training starts")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 143)
        self.assertIn("stopped by SIGTERM in part smoke", self.report())

    def test_different_losses_fail(self):
        code, _, _ = self.run_check("--only", "step", bad="cuda_graph=true")
        self.assertEqual(code, 1)
        self.assertEqual(self.checks("fail", "step"), ["losses with a graph and without"])
        code, _, _ = self.run_check("--only", "smoke", bad="run.device=cuda")
        self.assertEqual(code, 1)
        self.assertEqual(len(self.checks("fail", "smoke")), 2)

    def test_parts_that_do_not_fit_the_time_are_skipped_with_the_reason(self):
        code, _, err = self.run_check("--minutes", "1")
        self.assertEqual(code, 0, err)
        skipped = [row for row in self.results() if row.get("event") == "end" and row["result"] == "skip"]
        self.assertIn("parity", [row["part"] for row in skipped])
        for row in skipped:
            self.assertRegex(row["reason"], r"needs about \d+ s, \d+ s are left")
            self.assertIn(row["reason"], self.report())
        self.assertTrue(self.checks("pass", "smoke"))

    def test_what_needs_two_gpus_is_skipped_on_one_and_run_on_two(self):
        self.run_check("--only", "ranks")
        self.assertNotIn("bench comm", self.calls())
        self.assertIn("bench comm", self.checks("skip", "ranks"))
        self.run_check("--only", "ranks", gpus=2)
        self.assertIn("bench comm --device cuda --ranks 2", self.calls())
        self.assertIn("parallel.overlap=false", self.calls())

    def test_a_disturbed_rank_that_is_not_named_fails(self):
        self.run_check("--only", "ranks", blind=1)
        self.assertEqual(self.checks("fail", "ranks"), ["a killed rank", "a stopped peer"])

    def test_continue_repeats_what_a_kill_interrupted(self):
        process = self.start("--only", "smoke,kernels", cases="hang\n")
        self.wait_for(self.hanging().exists, "the kernel tests start")
        self.kill(process)
        self.run_check("--continue", "--only", "smoke,kernels")
        self.assertEqual(self.checks("pass", "kernels").count("kernel one"), 1)
        self.assertEqual(len(self.checks("pass", "smoke")), 2)

    def test_continue_repeats_no_finished_part(self):
        self.run_check("--only", "probe,build,smoke")
        (self.folder / "calls").unlink()
        code, _, _ = self.run_check("--continue", "--only", "smoke,step")
        self.assertEqual(code, 0)
        self.assertNotIn("trireme train", self.calls())
        self.assertIn("bench step", self.calls())
        self.assertTrue(self.checks("pass", "smoke"))

    def test_a_failure_of_an_earlier_call_decides_the_exit_code(self):
        self.run_check("--only", "smoke", bad="run.device=cuda")
        code, _, _ = self.run_check("--continue", "--only", "step")
        self.assertEqual(code, 1)

    def test_uncorrected_memory_errors_and_an_old_driver_fail(self):
        code, _, _ = self.run_check("--only", "probe", ecc=3)
        self.assertEqual(code, 1)
        code, _, _ = self.run_check("--only", "build", cuda="12.4")
        self.assertEqual(code, 1)
        self.assertIn("12.4", self.report())

    def test_an_old_driver_names_the_reasons_otherwise(self):
        self.run_check("--only", "step", old_driver=1)
        self.assertIn("thermal", self.report())

    def test_what_is_missing_is_said_at_once(self):
        for tool in ("bash", "sed", "awk", "dirname", "realpath", "mkdir", "date", "cat", "tr", "head", "tail", "grep", "cut", "sleep", "timeout", "uname", "rm", "mv",
                     "basename", "nproc", "paste", "sort", "tee", "git", "find", "ls", "env", "touch", "wc", "readlink", "mktemp", "sh", "cp", "ln"):
            if not (self.tools / tool).exists():
                (self.tools / tool).symlink_to(f"/usr/bin/{tool}")
        environment = {"PATH": str(self.tools), "HOME": str(self.folder), "CUDA_HOME": str(self.folder)}
        done = subprocess.run([str(SCRIPT), "--work", str(self.folder / "work"), "--output", str(self.output)], env=environment, capture_output=True, text=True,
                              check=False, timeout=60)
        self.assertEqual(done.returncode, 1)
        first = done.stderr.splitlines()[0]
        for word in ("nvcc", "cmake", "g++", "--bundle"):
            self.assertIn(word, first)
        self.assertIn("NVIDIA H100", self.report())
        self.assertTrue(all(row["result"] in ("skip", "fail") for row in self.results() if row.get("event") == "end" and row["part"] != "probe"))

    def test_without_a_gpu_nothing_is_written(self):
        self.program(self.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
        code, _, err = self.run_check()
        self.assertEqual(code, 1)
        self.assertIn("there is no GPU here", err)
        self.assertFalse(self.output.exists())

    def test_a_dry_run_walks_all_parts_and_runs_nothing(self):
        self.program(self.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
        code, out, err = self.run_check("--dry-run", "--minutes", "120")
        self.assertEqual(code, 0, err)
        for part in ("probe", "build", "smoke", "step", "kernels", "bench", "ranks", "sanitizer", "parity", "pytorch", "profile"):
            self.assertIn(f"== {part}", out)
        for text in ("kernels.cuda_graph=true", "compute-sanitizer is not installed", "test_kernels_gpu"):
            self.assertIn(text, out)
        self.assertFalse(self.output.exists())
        self.assertFalse((self.folder / "calls").exists())

    def test_usage(self):
        for arguments in (("--minutes", "0"), ("--minutes", "soon"), ("--only", "everything"), ("--bundle",), ("--fast",)):
            code, _, err = self.run_check(*arguments, bundle=False)
            self.assertEqual(code, 64, err)


ONE_OF_EACH_KIND = ("all_parts_pass", "a_kill_leaves_the_results_and_the_report_so_far", "without_a_gpu_nothing_is_written", "usage")

if __name__ == "__main__":
    everything = "--all" in sys.argv
    unittest.main(defaultTest=None if everything else [f"GpuCheck.test_{name}" for name in ONE_OF_EACH_KIND],
                  argv=[word for word in sys.argv if word != "--all"])
