// resilience.reroute: a step in which other pipelines compute a relieved rank's micro-batches is the undisturbed step.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "parallel/mesh.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/rerouting.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

Config with_relieved(Config config, std::vector<std::string> ranks, int64_t from = 0) {
  config.resilience.reroute = std::move(ranks);
  config.resilience.reroute_from = from;
  return config;
}

struct RerouteCase {
  ParityModel model;
  ParityLayout layout;
  std::vector<std::string> relieved;
  int64_t from = 0;
};

/// Every relieved rank of two pipelines of two stages under each ZeRO stage; then what else changes the lists, each once or twice.
std::vector<RerouteCase> reroute_cases() {
  using enum ParityModel;
  std::vector<RerouteCase> cases;
  for (int zero = 0; zero <= 3; ++zero)
    for (int rank = 0; rank < 4; ++rank)
      cases.push_back({rank % 2 == 0 ? kLlamaGrouped : kGpt2Dropout,
                       {{.pipeline = 2, .data = 2, .zero = zero, .schedule = rank < 2 ? ScheduleKind::k1F1B : ScheduleKind::kGPipe}},
                       {std::to_string(rank / 2) + "/" + std::to_string(rank % 2)},
                       (zero + rank) % 3});
  cases.push_back({kLlamaGrouped, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}, {"1/0"}});
  cases.push_back({kLlama, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 2}}, {"0/1"}, 1});
  cases.push_back({kGpt2Dropout, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 0, .schedule = ScheduleKind::kGPipe}}, {"0/1"}});
  cases.push_back({kLlamaGrouped, {{.pipeline = 4, .data = 2, .zero = 3}}, {"1/2"}});
  cases.push_back({kGpt2, {{.pipeline = 3, .data = 2, .zero = 1}}, {"0/2"}, 2});
  cases.push_back({kLlamaGrouped, {{.pipeline = 2, .data = 3, .zero = 3}}, {"2/1"}});
  cases.push_back({kGpt2Dropout, {{.pipeline = 2, .data = 4, .zero = 2, .replicate = 2}}, {"3/0"}});
  cases.push_back({kLlama, {{.pipeline = 2, .data = 4, .zero = 3, .replicate = 2}}, {"0/1", "2/1", "1/0"}});
  cases.push_back({kLlamaGrouped, {{.pipeline = 2, .data = 2, .zero = 3}}, {"0/0", "1/1"}});  // both pipelines help each other
  cases.push_back({kLlamaGrouped, {{.pipeline = 2, .data = 2, .zero = 3, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}}, {"0/1"}});
  cases.push_back({kGpt2Dropout, {{.pipeline = 2, .data = 2, .zero = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}, {"1/0"}, 1});
  cases.push_back({kLlama, {{.pipeline = 3, .data = 2, .zero = 3, .schedule = ScheduleKind::kZbH1}}, {"1/1"}});
  cases.push_back({kGpt2, {{.pipeline = 2, .data = 3, .zero = 1, .schedule = ScheduleKind::kZbH2}}, {"1/1"}});
  cases.push_back({kLlamaGrouped, {{.pipeline = 2, .data = 2, .zero = 3, .reshard = Reshard::kAfterStep}}, {"1/1"}});
  cases.push_back({kLlamaGrouped, {{.pipeline = 2, .data = 2, .zero = 3, .gradient_accumulation = GradientAccumulation::kFull}}, {"1/0"}, 5});
  cases.push_back({kGpt2Dropout, {{.pipeline = 2, .data = 2, .zero = 2, .micro_batch = 2, .recompute = RecomputeMode::kFull}}, {"0/0"}});
  cases.push_back({kLlama, {{.pipeline = 2, .data = 2, .zero = 3, .recompute = RecomputeMode::kSelective}}, {"0/1"}});
  return cases;
}

TEST_CASE("reroute: losses, norms, gradients, weights and evaluations are those of the undisturbed step, with in-flight buffers poisoned") {
  int other_bits = 0;
  for (const RerouteCase& one : reroute_cases()) {
    const Config config = parity_config(one.model, one.layout, "fp64");
    INFO(name_of(one.model) << " " << one.layout.str() << ", relieved " << one.relieved.front() << " from micro-batch " << one.from);
    const RunRecord undisturbed = train_on_threads(config, 3, Device::kReference, true);
    const RunRecord rerouted = train_on_threads(with_relieved(config, one.relieved, one.from), 3, Device::kReference, true);
    CHECK(difference(undisturbed, rerouted, 1e-10) == "");
    other_bits += difference(undisturbed, rerouted, 0) != "" ? 1 : 0;
  }
  CHECK(other_bits > 20);  // most sums have another order, so the steps did differ
}

TEST_CASE("reroute: blocking transfers, documents that are balanced by cost, a window and a prefetch of two change nothing") {
  ParityLayout layout{{.pipeline = 2, .data = 2, .zero = 3}};
  layout.prefetch = 2;
  layout.documents = layout.balance = true;
  layout.window = 4;
  Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
  for (const bool overlap : {true, false}) {
    config.parallel.overlap = overlap;
    const RunRecord undisturbed = train_on_threads(config, 3, Device::kReference, true);
    for (const char* const relieved : {"0/1", "1/0"})
      CHECK(difference(undisturbed, train_on_threads(with_relieved(config, {relieved}), 3, Device::kReference, true), 1e-10) == "");
  }
}

TEST_CASE("reroute: every sample's loss is added once, by helpers for the relieved rank, and the number of valid tokens is unchanged") {
  const ParityLayout layout{{.pipeline = 2, .data = 3, .zero = 2}};
  const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  for (const int from : {0, 1, 3}) {
    std::mutex mutex;
    std::vector<int64_t> tokens(3), all_tokens;
    std::vector<double> losses(3), mean;
    on_ranks(with_relieved(config, {"1/1"}, from), [&](Trainer& trainer) {
      trainer.initialise();
      const RaggedDataset data(29, 12, 61);
      const StepResult result = trainer.step(data, 0, 1e-3);
      const auto of_micro_batches = [&](ActionType type) {
        return std::ranges::count_if(trainer.program().training_list(), [&](const Action& a) { return a.type == type && a.part == 0; });
      };
      const MeshCoordinate at = trainer.mesh().at;
      const int data_rank = trainer.batches().data_rank(), computed = data_rank == 1 ? from : 4 + (4 - from + (data_rank == 0 ? 1 : 0)) / 2;
      TRIREME_CHECK(of_micro_batches(ActionType::kForward) == (at.pipeline == 1 ? computed : 4), "micro-batches of data rank ", data_rank);
      const std::lock_guard lock(mutex);
      all_tokens.push_back(result.targets);
      mean.push_back(result.loss);
      if (!trainer.counts_loss()) return;
      tokens[static_cast<size_t>(data_rank)] = result.local_targets;
      losses[static_cast<size_t>(data_rank)] = result.local_loss;
    });
    CHECK(std::ranges::count(all_tokens, all_tokens.front()) == 6);
    CHECK(std::reduce(tokens.begin(), tokens.end()) == all_tokens.front());
    CHECK(std::reduce(losses.begin(), losses.end()) / static_cast<double>(all_tokens.front()) == Approx(mean.front()).epsilon(1e-12));
    CHECK((tokens[1] == 0) == (from == 0));
    CHECK((losses[1] == 0) == (from == 0));
    for (const size_t helper : {0, 2}) CHECK(losses[helper] / static_cast<double>(tokens[helper]) == Approx(mean.front()).epsilon(0.3));
  }
}

TEST_CASE("reroute: data ranks that compute each other's samples take the same step") {
  const Config config = with_relieved(parity_config(ParityModel::kLlama, {{.pipeline = 2, .data = 3, .zero = 2}}, "fp64"), {"0/1"});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const RaggedDataset data(29, 12, 61);
    const StepResult result = trainer.step(data, 0, 0);
    for (const int by : {1, 2}) {
      trainer.rotate_data(by);
      const StepResult rotated = trainer.step(data, 0, 0);
      TRIREME_CHECK(std::abs(rotated.loss - result.loss) <= 1e-10 * result.loss, "the loss differs");
      TRIREME_CHECK(std::abs(rotated.grad_norm - result.grad_norm) <= 1e-10 * result.grad_norm, "the gradient differs");
    }
  });
}

TEST_CASE("reroute: the forecast of every rank's memory is what it takes, more on helpers and less on a relieved rank") {
  for (const RerouteCase& one :
       {RerouteCase{ParityModel::kLlamaGrouped, {{.pipeline = 2, .data = 3, .zero = 3}}, {"1/0"}},
        RerouteCase{ParityModel::kGpt2Dropout, {{.pipeline = 2, .data = 2, .zero = 1, .schedule = ScheduleKind::kGPipe}}, {"0/1"}, 2},
        RerouteCase{ParityModel::kLlama, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 2, .schedule = ScheduleKind::kZbH1}}, {"0/0"}}}) {
    const Config config = parity_config(one.model, one.layout, "fp64"), routed = with_relieved(config, one.relieved, one.from);
    const MeshShape mesh = mesh_shape(config.parallel);
    const MeasuredRun run = measured_run(routed, RaggedDataset(29, 12, 61));
    const Rerouting rerouting = *rerouting_of(routed, microbatches_of(routed));
    const auto activations = [](const RankMemory& memory) { return memory.peak[static_cast<size_t>(MemoryCategory::kActivations)]; };
    std::vector<int64_t> highest(static_cast<size_t>(mesh.pipeline));
    for (int rank = 0; rank < mesh.world(); ++rank) {
      INFO(one.layout.str() << ", rank " << rank);
      const RankMemory& real = run.memory[static_cast<size_t>(rank)];
      checked_forecast(routed, run, rank);
      const MeshCoordinate at = coordinate_of(mesh, rank);
      const int data = at.replicate * mesh.shard + at.shard;
      const int64_t undisturbed = activations(forecast_memory(config, rank, mesh.world()));
      if (rerouting.relieves(data, at.pipeline)) CHECK(activations(real) < undisturbed);
      if (!rerouting.added[static_cast<size_t>(data)][static_cast<size_t>(at.pipeline)].empty()) CHECK(activations(real) > undisturbed);
      int64_t& most = highest[static_cast<size_t>(at.pipeline)];
      most = std::max(most, real.peak_total);
    }
    for (int pipeline = 0; pipeline < mesh.pipeline; ++pipeline) {
      int64_t forecast = 0;
      for (const int rank : ranks_to_forecast(routed, pipeline))
        forecast = std::max(forecast, forecast_memory(routed, rank, mesh.world()).peak_total);
      CHECK(forecast == highest[static_cast<size_t>(pipeline)]);
    }
  }
}

}  // namespace
}  // namespace trireme::test
