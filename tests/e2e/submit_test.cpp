// `trireme submit` with stand-ins for the commands of Slurm. tests/slurm/jobs.py runs the same on a real Slurm.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace trireme::test {
namespace {

void check_part(const std::string& part) {
  const TemporaryDirectory directory;
  must(Process({"python3", in_checkout("tests/slurm_script_test.py"), kBinary, part}, directory.path(), std::chrono::seconds(300)).wait());
}

}  // namespace

TEST_CASE("submit: the batch script requeues only what another try can mend, and not without end") { check_part("ends"); }
TEST_CASE("submit: the batch script writes through no link, into no pipe and into no file with a second name") { check_part("links"); }
TEST_CASE("submit: the batch script passes every word on as it was typed") { check_part("command_lines"); }
TEST_CASE("submit: the batch script excludes nodes that fail again, and never too many") { check_part("nodes"); }
TEST_CASE("submit: the script is kept and submitted, and nothing is written where something is wrong") { check_part("submission"); }

TEST_CASE("submit: a run records what the queue says of its Slurm job, and reports show it beside the accounting") {
  TemporaryDirectory directory;
  prepare_run(directory);
  write_file(directory / "slurm.py", R"(#!/usr/bin/env python3
import os, sys
name = os.path.basename(sys.argv[0])
with open("asked", "a") as file:
    print(name, *sys.argv[1:], file=file)
assert os.environ["TZ"] == "UTC0" and "--jobs=17" in sys.argv
if name == "squeue":
    row = ["17", "gpu", "RUNNING", "2026-11-27T16:00:00", "2026-11-27T16:10:00", "2026-11-28T16:00:00", "8", "cpu=8,gres/gpu=4", "node[1-2]"]
    print("".join(cell.ljust(width) for cell, width in zip(row, [20, 100, 40, 40, 40, 40, 20, 400, 4000])))
elif os.path.exists("disabled"):
    sys.exit("Slurm accounting storage is disabled")
else:
    print("17|gpu|node[1-2]|COMPLETED|0:0|2026-11-27T16:00:00|2026-11-27T16:10:00|2026-11-27T17:40:00|8|cpu=8,gres/gpu=4||7200000")
    print("17.0||node[1-2]|COMPLETED|0:0|2026-11-27T16:10:00|2026-11-27T16:10:00|2026-11-27T17:40:00|8|cpu=8|2048K|7200000")
)");
  std::filesystem::create_directory(directory / "bin");
  for (const char* name : {"squeue", "sacct"}) std::filesystem::copy_file(directory / "slurm.py", directory / "bin" / name);
  must(shell(directory, "chmod +x bin/*"));
  const std::string slurm = "export PATH=$PWD/bin:$PATH SLURM_JOB_ID=17 SLURM_RESTART_COUNT=0; ";
  const std::string train = "$T train run.yaml --set training.steps=3 --set training.evaluate.every=0 --set data.validation=[] --set run.directory=";
  must(shell(directory, slurm + train + "run"));
  CHECK(count(read_file(directory / "asked"), "\n") == 1);
  CHECK(count(read_file(directory / "run/jobs.jsonl"),
              R"({"event":"slurm","partition":"gpu","nodes":"node[1-2]","cpus":8,"gpus":4,"submitted":"2026-11-27T16:00:00.000Z",)"
              R"("started":"2026-11-27T16:10:00.000Z")") == 1);

  const nlohmann::json found = nlohmann::json::parse(must(shell(directory, slurm + "$T goodput run --json")).out);
  REQUIRE(found["slurm_jobs"].size() == 1);
  const nlohmann::json job = found["slurm_jobs"][0];
  CHECK(job["state"] == "COMPLETED");
  CHECK(job["queued_seconds"] == 600);
  CHECK(job["elapsed_seconds"] == 5400);
  CHECK(job["gpus"] == 4);
  CHECK(job["max_rss_bytes"] == 2048 * 1024);
  CHECK(job["energy_joules"] == 7.2e6);
  CHECK(found["slurm_note"].is_null());
  must(shell(directory, slurm + "$T report run"));
  CHECK(count(read_file(directory / "report.html"), "<td>2 kWh</td>") == 1);

  write_file(directory / "disabled", "");
  const std::string without = must(shell(directory, slurm + "$T goodput run")).out;
  CHECK(count(without, "Slurm accounting storage is disabled") == 1);
  CHECK(count(without, "node[1-2]") == 1);
  // Elsewhere: what the run has recorded. Here the search path has python3, but no Slurm.
  for (const char* name : {"squeue", "sacct"}) std::filesystem::remove(directory / "bin" / name);
  must(shell(directory, "mkdir path && ln -s $(command -v sh) path"));
  const std::string elsewhere = must(shell(directory, "PATH=$PWD/path $T goodput run")).out;
  CHECK(count(elsewhere, "sacct was not found in PATH") == 1);
  CHECK(count(elsewhere, "node[1-2]") == 1);
  // A run without Slurm asks nothing.
  must(shell(directory,
             "unset SLURM_JOB_ID; PATH=$PWD/path $T train run.yaml --set training.steps=3 --set training.evaluate.every=0 "
             "--set data.validation=[] --set run.directory=plain"));
  CHECK(count(must(shell(directory, "$T goodput plain")).out, "Slurm") == 0);
}

}  // namespace trireme::test
