// What the black box costs: trains on the ranks of a configuration and switches it on and off from step to step, in the order on off off on, so that whatever
// else changes over time falls on both alike. Prints the paired difference, and the updates of a step with their time.
//   black_box CONFIG [PAIRS]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "parallel/comm/watched.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/trainer.h"
#include "trainer/resilience/black_box_file.h"
#include "trainer/run/run_data.h"

using namespace trireme;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Seconds of an update: the mean over the updates of a collective operation and an action.
double seconds_of_update(BlackBox* box) {
  Progress progress;
  const size_t world = progress.add_group("world", {0, 1});
  progress.record(box);
  constexpr int kRounds = 100'000;
  const auto begin = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    progress.act("forward of micro-batch 3, blocks.2", 3);
    const Progress::Wait wait{"all_reduce", world, progress.enter(world, "all_reduce", 4096), {}};
    progress.begin_wait(wait);
    progress.end_wait();
    progress.finish(wait);
  }
  const double seconds = seconds_since(begin);
  progress.record(nullptr);
  return seconds / kRounds / 4;  // finish() is not counted by Progress
}

void report(std::vector<double> on, std::vector<double> off, uint64_t updates, double on_update, double off_update) {
  std::vector<double> differences;
  for (size_t i = 0; i < on.size(); ++i) differences.push_back(on[i] - off[i]);
  const auto median = [](std::vector<double> values) {
    const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  const double step = median(off);
  double sum = 0, squares = 0;
  for (const double each : differences) {
    sum += each;
    squares += each * each;
  }
  const auto count = static_cast<double>(differences.size());
  const double mean = sum / count, error = std::sqrt((squares / count - mean * mean) / count);
  std::printf("%zu pairs of steps of %.3f ms: on - off = median %+.3f %%, mean %+.3f %% +- %.3f %%\n", differences.size(), 1e3 * step,
              100 * median(differences) / step, 100 * mean / step, 100 * error / step);
  std::printf("%llu updates a step, %.0f ns each with and %.0f ns without: %.3f %% of a step\n", static_cast<unsigned long long>(updates),
              1e9 * on_update, 1e9 * off_update, 100 * static_cast<double>(updates) * (on_update - off_update) / step);
}

ExitCode measure(const LaunchEnvironment& environment, const std::string& file, size_t pairs) {
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    Config config = resolve(load_config(file), world->size());
    const int rank = world->rank();
    machine.emplace(std::move(world), place, config);
    Progress progress;
    const std::unique_ptr<Communicator> noted = watched(machine->world(), progress);
    const RunData data = open_run_data(config);
    Trainer trainer(machine->ctx(), *noted, config, true);
    trainer.watch(progress);
    const std::filesystem::path path = black_box_path(config.run.directory, rank);
    std::filesystem::create_directories(path.parent_path());
    MappedBlackBox mapped(path, {rank, noted->size(), "", "", ""});
    std::vector<double> on, off;
    uint64_t updates = 0;
    for (int64_t step = 0; off.size() < pairs || on.size() < pairs; ++step) {
      const bool records = step % 4 == 0 || step % 4 == 3;
      progress.record(nullptr);
      if (records) {
        mapped.box() = {.header = mapped.box().header, .activities = {}, .waits = {}, .groups = {}, .records = {}, .heap = {}};
        progress.record(&mapped.box());
      }
      noted->barrier();
      const uint64_t before = progress.snapshot().count;
      const auto begin = Clock::now();
      progress.begin_step(step + 1);
      trainer.step(data.train, step, 1e-4);
      const double seconds = seconds_since(begin);
      updates = progress.snapshot().count - before;
      if (step >= 8) (records ? on : off).push_back(seconds);
    }
    progress.record(nullptr);
    if (rank == 0) report(on, off, updates, seconds_of_update(&mapped.box()), seconds_of_update(nullptr));
    return ExitCode::kOk;
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    start_signal_thread();
    const std::vector<std::string> words{argv + 1, argv + argc};
    if (words.empty() || words.size() > 2) return 64;
    const LaunchEnvironment environment = read_launch_environment();
    const Config config = resolve(load_config(words[0]));
    const int ranks = mesh_shape(config.parallel).world();
    if (!environment.is_rank() && ranks > 1) return launch(environment, ranks, words);
    return static_cast<int>(measure(environment, words[0], words.size() > 1 ? std::stoul(words[1]) : 200));
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
