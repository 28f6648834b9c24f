#include "trainer/commands/bench_algorithms.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "parallel/comm/collective_steps.h"
#include "trainer/bench/algorithms.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/launcher.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"
#include "trainer/machine/machine.h"

namespace trireme {
namespace {

std::vector<CollectiveAlgorithm> algorithms_of(const std::vector<std::string>& names) {
  std::vector<CollectiveAlgorithm> chosen;
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms)
    if (std::ranges::count(names, name_of(algorithm)) + std::ranges::count(names, "all") > 0) chosen.push_back(algorithm);
  return chosen;
}

std::vector<int64_t> sizes_of(const AlgorithmOptions& options) {
  if (!options.sizes.empty()) return options.sizes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = 1 << 10; bytes <= 1 << 26; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

/// The lists for an all_reduce of the first size, in fp32.
std::string lists_text(const AlgorithmOptions& options) {
  const int64_t count = std::max<int64_t>(1, (options.sizes.empty() ? 1024 : options.sizes.front()) / 4);
  std::string text;
  for (const CollectiveAlgorithm algorithm : algorithms_of(options.names)) {
    std::vector<CollectiveSteps> ranks;
    for (int rank = 0; rank < static_cast<int>(options.ranks); ++rank)
      ranks.push_back(collective_steps(algorithm, CollectiveVerb::kAllReduce, rank, static_cast<int>(options.ranks), count));
    text += concat(name_of(algorithm), ", all_reduce of ", count, " elements\n", text_of(ranks));
  }
  return text;
}

nlohmann::ordered_json measured(Context& ctx, Communicator& world, const AlgorithmOptions& options) {
  // Short batches: on a machine that is shared with other programs, long ones are all interrupted.
  const bench::Effort effort{.batch_seconds = std::min(5e-4, options.seconds / 3), .seconds = options.seconds, .world = nullptr};
  const std::vector<int64_t> sizes = sizes_of(options);
  const int64_t rounds = options.rounds > 0 ? options.rounds : 3;
  const MessageCosts costs = bench::measure_message_costs(ctx, world, static_cast<double>(std::ranges::max(sizes)), effort, rounds);
  return bench::bench_algorithms(ctx, world, algorithms_of(options.names), sizes, costs, effort, rounds);
}

void report(const AlgorithmOptions& options, const nlohmann::ordered_json& rows, const nlohmann::ordered_json& environment,
            std::optional<DurableFile>& output) {
  if (output) {
    output->write(rows.dump() + "\n");
    output->commit();
    return;
  }
  const nlohmann::ordered_json result = {{"bench", "comm"},
                                         {"transport", options.threads ? "threads" : "mpi"},
                                         {"ranks", environment["world_size"]},
                                         {"algorithms", rows},
                                         {"environment", environment}};
  std::cout << (options.json ? result.dump() + "\n" : bench::algorithms_text(rows));
  finish_output();
}

}  // namespace

int bench_algorithms(const AlgorithmOptions& options, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  if (options.lists) {
    std::cout << lists_text(options);
    finish_output();
    return static_cast<int>(ExitCode::kOk);
  }
  const auto ranks = static_cast<int>(options.ranks);
  if (options.threads) {
    if (environment.is_rank()) throw ConfigError("bench comm --transport threads: runs in one process; start it without mpirun and srun");
    std::optional<DurableFile> output;
    if (!options.output.empty()) output.emplace(options.output);
    bench::on_rank_threads(ranks, [&](Communicator& world) {
      Arena arena(Device::kCpu);
      Context ctx{Device::kCpu, &arena, 1};
      const nlohmann::ordered_json rows = measured(ctx, world, options);
      if (world.rank() == 0) report(options, rows, describe_environment(ctx, ranks, {}), output);
    });
    return static_cast<int>(ExitCode::kOk);
  }
  if (!environment.is_rank()) return launch(environment, ranks, command_line, {.resumable = false, .oversubscribe = options.oversubscribe});
  return static_cast<int>(run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    std::optional<DurableFile> output;
    collectively(*world, [&] {
      if (world->size() < 2) throw ConfigError("bench comm: needs at least two ranks");
      if (world->rank() == 0 && !options.output.empty()) output.emplace(options.output);
    });
    Config config;
    config.run.device = DeviceType::kCpu;
    machine.emplace(std::move(world), place, config);
    const nlohmann::ordered_json rows = measured(machine->ctx(), machine->world(), options);
    if (machine->world().rank() == 0) report(options, rows, describe_environment(machine->ctx(), machine->world().size(), {}), output);
    return ExitCode::kOk;
  }));
}

}  // namespace trireme
