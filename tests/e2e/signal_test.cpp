// Which threads handle signals. oneDNN's fp32 matrix kernels use the stack pointer as a general register: a handler on a compute thread corrupts the
// heap.
#include <csignal>
#include <fstream>
#include <thread>
#include <tuple>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Wide enough for oneDNN to generate code, which it does in fp32 and fp16.
const Arguments kWideModel = sets({"model.hidden_size=64", "model.ffn_size=128", "training.sequence_length=64", "training.global_batch_size=32",
                                   "training.steps=10", "training.schedule.warmup_steps=2", "training.evaluate.every=0", "data.validation=[]"});

Arguments train(const std::string& run, const Arguments& more) { return Arguments{kBinary, "train", "run.yaml"} + kWideModel + in(run) + more; }

struct Calls {
  long processes = 0, on_signal_thread = 0, elsewhere = 0;
};

/// Runs `command` with a timer whose handler counts the threads it runs on.
Calls calls_of_handler(const TemporaryDirectory& directory, const Arguments& command, const std::string& threads) {
  const fs::path counts = directory / "counts";
  fs::remove_all(counts);
  fs::create_directory(counts);
  const Arguments environment{"env",
                              "LD_PRELOAD=" + shim("timer"),
                              "ASAN_OPTIONS=verify_asan_link_order=0",
                              "OMP_NUM_THREADS=" + threads,
                              "OMP_WAIT_POLICY=passive",
                              "TRIREME_SHIM_COUNTS=" + counts.string() + "/"};
  must(Process(environment + command, directory.path()).wait());
  Calls calls;
  for (const auto& file : fs::directory_iterator(counts)) {
    long on_signal_thread = 0, elsewhere = 0;
    std::ifstream(file.path()) >> on_signal_thread >> elsewhere;
    ++calls.processes;
    calls.on_signal_thread += on_signal_thread;
    calls.elsewhere += elsewhere;
  }
  return calls;
}

/// The mask of blocked signals of a thread ("SigBlk").
uint64_t blocked_signals(const fs::path& task) {
  std::ifstream status(task / "status");
  for (std::string word; status >> word;)
    if (word == "SigBlk:" && status >> word) return std::stoull(word, nullptr, 16);
  return 0;
}

}  // namespace

TEST_CASE("signals: a handler of a preloaded library never runs on a compute thread") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  std::string text;
  for (int i = 0; i < 150'000; ++i) text += "line " + std::to_string(i) + " of a text\n";
  write_file(directory / "text", text);
  const auto check_calls = [&](const Arguments& command, long processes, const std::string& threads) {
    CAPTURE(command, threads);
    const Calls calls = calls_of_handler(directory, command, threads);
    CHECK(calls.processes >= processes);
    CHECK(calls.on_signal_thread > 0);
    CHECK(calls.elsewhere == 0);
  };
  check_calls(train("one", {}), 1, "1");
  for (const std::string precision : {"fp32", "fp16", "bf16"}) check_calls(train(precision, sets({"training.precision=" + precision})), 1, "2");
  check_calls(train("four", layout(2, 1, 2, 3)), 5, "1");  // the launcher too
  check_calls({kBinary, "generate", "--checkpoint", "one", "--prompt", "Ship", "--max-tokens", "100"}, 1, "2");
  check_calls({kBinary, "data", "build", "--output", "built", "text"}, 1, "2");
  write_file(directory / "part", text.substr(0, 50'000));
  must(directory, {"data", "build", "--output", "evaluated", "part"});
  check_calls(Arguments{kBinary, "eval", "run.yaml", "--checkpoint", "one"} + kWideModel + sets({"data.validation=[evaluated]"}), 1, "2");
  check_calls({kBinary, "verify", "run.yaml", "--layouts", "tp2 pp2", "--steps", "4"}, 1, "2");
  check_calls(Arguments{kBinary, "bench", "kernels", "run.yaml", "--only", "gemm", "--seconds", "0.01"} + kWideModel, 1, "2");
}

TEST_CASE("signals: every thread of a job except the signal threads blocks them") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  const std::string run = (directory / "run").string();
  Process job(Arguments{"env", "OMP_NUM_THREADS=2", "OMP_WAIT_POLICY=passive"} + train(run, layout(2, 1, 1, 0) + sets({"training.steps=100000"})),
              directory.path());
  REQUIRE(job.wait_for("step 3/"));
  int processes = 0, computing = 0;
  for (const pid_t process : processes_with(run)) {
    const fs::path directory_of_it = "/proc/" + std::to_string(process);
    if (fs::read_symlink(directory_of_it / "exe") != kBinary) continue;
    ++processes;
    for (const auto& task : fs::directory_iterator(directory_of_it / "task")) {
      if (read_file(task.path() / "comm") == "signals\n") continue;
      const uint64_t blocked = blocked_signals(task.path());
      CAPTURE(read_file(task.path() / "comm"), blocked);
      ++computing;
      for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGALRM, SIGPROF, SIGUSR2, SIGPIPE, SIGRTMAX})
        CHECK((blocked >> (signal - 1) & 1) == 1);
    }
  }
  CHECK(processes == 4);      // the launcher and its guard, and two ranks
  CHECK(computing >= 3 + 6);  // launcher and hub; per rank also the threads of OpenMP, MPI and the monitor
  job.signal(SIGTERM);
  CHECK(job.wait().code == 75);
}

TEST_CASE("signals: commands without a StopRequest are ended by signals as usual") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGQUIT, SIGALRM}) {
    Process verify({kBinary, "verify", "run.yaml", "--layouts", "tp2 pp2 dp2", "--steps", "50"}, directory.path());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    verify.signal(signal);
    CHECK(verify.wait().code == 128 + signal);
  }
}

TEST_CASE("signals: after SIGTERM a command that keeps what is done, or has started ranks, ends with 75, and every other one by the signal") {
  const TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainOnly + in("done") + sets({"training.steps=2"}));
  std::string text;
  for (int i = 0; i < 4'000'000; ++i) text += "line " + std::to_string(i) + " of a text\n";
  write_file(directory / "text", text);
  must(directory, {"data", "build", "text", "--output", "long"});
  write_file(directory / "sweep.yaml",
             "base: run.yaml\ndirectory: sweep\nset: {training.steps: 1000000, training.evaluate.every: 0}\naxes: {run.seed: [1, 2]}\n"
             "objective: {metric: loss}\n");
  constexpr int kByTheSignal = 128 + SIGTERM;
  const std::vector<std::tuple<Arguments, int, int>> commands = {
      // command, milliseconds before the signal, exit code
      {kTrainOnly + in("run") + sets({"training.steps=1000000"}), 1000, 75},
      {kTrainOnly + in("ranks") + sets({"training.steps=1000000"}) + layout(1, 1, 2, 0), 2000, 75},
      {{"sweep", "sweep.yaml"}, 2000, 75},
      {{"data", "build", "text", "--output", "built"}, 200, 75},
      {{"generate", "--checkpoint", "done", "--prompt", "a", "--max-tokens", "100000000"}, 1000, 75},
      {{"generate", "--checkpoint", "done", "--prompt", "a", "--max-tokens", "100000000", "--tensor", "2"}, 2000, 75},
      {{"bench", "comm", "--ranks", "2", "--seconds", "60"}, 2000, 75},
      {{"bench", "step", "run.yaml", "--steps", "1000000"}, 1000, kByTheSignal},
      {{"eval", "run.yaml", "--checkpoint", "done", "--set", "data.validation=[long]"}, 300, kByTheSignal},
      {{"verify", "run.yaml", "--layouts", "tp2 pp2 dp2", "--steps", "50"}, 300, kByTheSignal},
      {{"plan", "run.yaml", "--search", "--cluster", "H100", "--cluster-set", "nodes=4096", "--output", "found.yaml"}, 20, kByTheSignal},
      {{"tokenizer", "train", "--vocab-size", "60000", "--output", "tokens.json", "text"}, 300, kByTheSignal},
  };
  for (const auto& [command, wait, code] : commands) {
    CAPTURE(command);
    Process process(Arguments{kBinary} + command, directory.path());
    std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    process.signal(SIGTERM);
    const Outcome outcome = process.wait();
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK(outcome.seconds < 20);
  }
  for (const char* name : {"found.yaml", "tokens.json", "built"}) CHECK_FALSE(fs::exists(directory / name));
  must(directory, {"data", "build", "text", "--output", "built"});  // continues from built.partial
}

}  // namespace trireme::test
