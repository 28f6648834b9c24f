// A run directory that somebody else has made may have anything under the names that a run writes.
#include <sys/stat.h>

#include <csignal>
#include <functional>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

const Arguments kAll =
    kTrainOnly + Arguments{"--max-steps", "3", "--trace-steps", "2:2"} +
    sets({"checkpoint.every=2", "security.audit.enabled=true", "observe.tensorboard=true", "observe.prometheus.textfile=run/figures.prom"}) +
    in("run");

/// Trains and reads the directory. Nothing may wait, die of a signal, or write elsewhere.
void check_uses(const TemporaryDirectory& directory) {
  for (const Arguments& command : {kAll, {"report", "run"}, {"inspect", "run"}}) {
    const Outcome outcome = Process(Arguments{kBinary} + command, directory.path(), std::chrono::seconds(60)).wait();
    INFO(command[0] << ": " << outcome.err);
    CHECK(std::set<int>{0, 1, 64, 65, 66, 74}.contains(outcome.code));
    CHECK(outcome.seconds < 30);
  }
}

}  // namespace

/// Puts something in the way of each file of a run: each name meets every `stride`-th of the kinds of things, and neighbours in the list others.
static void check_files(size_t stride) {
  const TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kAll);
  must(directory, {"report", "run"});
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory / "run")) {
    const std::string name = entry.path().lexically_relative(directory / "run").string();
    if (entry.is_regular_file() && !name.starts_with("checkpoints/") && !name.starts_with("tensorboard/")) names.insert(name);
  }
  for (const char* name : {"run.lock", "config.yaml", "metrics.jsonl", "jobs.jsonl", "logs/rank-0000.log", "logs/rank-0000.blackbox", "audit.jsonl",
                           "trace.json", "figures.prom"})
    CHECK(names.contains(name));
  names.insert({"logs/rank-0000.previous.blackbox", "checkpoints/latest", "peers.json", "privacy.json"});
  const std::set<std::string> temporary{"config.yaml.tmp", "metrics.jsonl.tmp", "logs/rank-0000.blackbox.tmp"};
  write_file(directory / "precious", "precious");
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> kinds = {
      {"link", [&](const fs::path& at) { fs::create_symlink(directory / "precious", at); }},
      {"second name", [&](const fs::path& at) { fs::create_hard_link(directory / "precious", at); }},
      {"pipe", [](const fs::path& at) { REQUIRE(::mkfifo(at.c_str(), 0600) == 0); }},
  };
  names.insert(temporary.begin(), temporary.end());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto& [kind, make] = kinds[i];
    size_t number = i;
    for (const std::string& name : names) {
      if (number++ % stride != 0) continue;
      fs::remove_all(directory / "run");
      const fs::path at = directory / "run" / name;
      fs::create_directories(at.parent_path());
      make(at);
      INFO(kind << " at " << name);
      check_uses(directory);
      CHECK(read_file(directory / "precious") == "precious");
    }
  }
}

TEST_CASE("hostile directory: no file of a run is written through a link, into a pipe or into a file with a second name") { check_files(3); }

TEST_CASE("hostile directory: no file of a run is written through anything in its place", "[slow]") { check_files(1); }

TEST_CASE("hostile directory: no directory of a run is a link, so that nothing elsewhere is made, renamed or removed") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  for (const std::string name : {"logs", "checkpoints", "tensorboard"}) {
    fs::remove_all(directory / "run");
    fs::remove_all(directory / "elsewhere");
    fs::create_directories(directory / "elsewhere/step-00000001.other-1.partial");
    fs::create_directories(directory / "elsewhere/step-00000001");
    write_file(directory / "elsewhere/rank-0000.blackbox", "precious");
    write_file(directory / "elsewhere/rank-0000.log", "precious");
    fs::create_directory(directory / "run");
    fs::create_directory_symlink(directory / "elsewhere", directory / "run" / name);
    INFO("link at " << name);
    check_uses(directory);
    CHECK(names_in(directory / "elsewhere") ==
          std::set<std::string>{"step-00000001.other-1.partial", "step-00000001", "rank-0000.blackbox", "rank-0000.log"});
    CHECK(read_file(directory / "elsewhere/rank-0000.log") == "precious");
  }
}

TEST_CASE("hostile directory: a pipe at a log neither holds a run up nor keeps SIGTERM from it") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  fs::create_directories(directory / "run/logs");
  for (const char* name : {"run/logs/rank-0000.log", "run/logs/rank-0000.blackbox.tmp"}) REQUIRE(::mkfifo((directory / name).c_str(), 0600) == 0);
  Process process(Arguments{kBinary} + kTrainOnly + in("run") + sets({"training.steps=1000000", "observe.print_every=1"}), directory.path());
  REQUIRE(process.wait_for("step 2/"));
  process.signal(SIGTERM);
  const Outcome outcome = process.wait();
  check_error(outcome, 75, "rank 0 has no log and no black box: cannot write run/logs/rank-0000.log: is not a regular file");
  CHECK(outcome.seconds < 30);
}

TEST_CASE("hostile directory: one deep, one long and one foreign line of JSON end no command, and are counted") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments train = kTrainOnly + in("run") + sets({"checkpoint.every=2", "training.steps=6"});
  must(directory, train + Arguments{"--max-steps", "4"});
  fs::copy(directory / "run", directory / "same", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const std::string deep = "{\"event\":\"start\",\"step\":1,\"x\":" + std::string(80000, '[') + std::string(80000, ']') + ",\"time\":1}\n";
  const std::string foreign = "[1]\n{\"step\":[],\"loss\":{},\"micro_batches\":1,\"workers\":\"x\"}\n{\"event\":7}\n\xff\xfe\n";
  for (const char* name : {"metrics.jsonl", "jobs.jsonl"})
    write_file(directory / "run" / name, deep + foreign + read_file(directory / "run" / name) + deep);
  fs::create_directory(directory / "run/slurm");
  write_file(directory / "run/slurm/jobs.jsonl", deep + foreign);
  const std::string skipped = "metrics.jsonl: 6 lines cut or damaged, skipped";
  check_error(run(directory, {"report", "run"}), 0, skipped);
  check_error(run(directory, {"goodput", "run"}), 0, skipped);
  check_error(run(directory, {"compare", "run", "same"}), 0, skipped);
  must(directory, {"inspect", "run"});
  must(directory, train);
  for (int step = 1; step <= 6; ++step)
    CHECK(count(read_file(directory / "run/metrics.jsonl"), "{\"step\":" + std::to_string(step) + ",\"loss\":") == 1);
  CHECK(count(read_file(directory / "run/metrics.jsonl"), "[[[") == 0);
}

}  // namespace trireme::test
