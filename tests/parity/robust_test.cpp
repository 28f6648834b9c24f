// Robust aggregation in training: equal to a rule computed by hand from the gradients of the data ranks under every layout, forecast exactly, resumed bit
// for bit, and reported.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "parallel/sharding/robust_reducer.h"
#include "tests/parity/by_hand.h"
#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/disturbed_run.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/reducer_state.h"
#include "trainer/report/suspects.h"

namespace trireme::test {
namespace {

using enum AggregationRule;
constexpr AggregationRule kRules[] = {kMedian, kTrimmedMean, kKrum, kMultiKrum, kBulyan, kGeometricMedian, kCenteredClipping};
constexpr AggregationRule kOfThree[] = {kMedian, kTrimmedMean, kGeometricMedian, kCenteredClipping};  ///< rules for three data ranks with f = 1

std::string name_of_rule(AggregationRule rule) { return kNames<AggregationRule>[static_cast<size_t>(rule)]; }

Config with_rule(Config config, AggregationRule rule, double momentum = 0) {
  AggregationConfig& a = config.security.aggregation;
  a.rule = rule;
  if (rule == kMean) return config;
  a.byzantine = 1;
  a.momentum = momentum;
  if (rule == kCenteredClipping) a.radius = kByHandRadius;
  return config;
}

/// 16 sequences for 8 data ranks, or 12 for others.
Config config_of(ParityModel model, const std::string& spec, AggregationRule rule, double momentum = 0, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  Config config = parity_config(model, layout, precision);
  if (layout.data == 8) config.training.global_batch_size = 16;
  return with_rule(config, rule, momentum);
}

/// The largest difference between the gradient that a layout's first step has aggregated and `expected`, relative to the largest element.
double error_of(const Config& config, const std::vector<double>& expected, double& norm) {
  double worst = 0;
  std::mutex mutex;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const StepResult result = trainer.step(ragged_data(config), 0, 0);
    const std::vector<double> gradient = gathered_gradient(trainer);
    TRIREME_CHECK(gradient.size() == expected.size(), gradient.size(), " elements, expected ", expected.size());
    const std::lock_guard lock(mutex);
    norm = result.grad_norm;
    for (size_t k = 0; k < gradient.size(); ++k) {
      const double error = std::abs(gradient[k] - expected[k]);
      if (!(error <= worst)) worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    }
  });
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return worst / largest;
}

void check_by_hand(const Config& config, AggregationRule rule, const std::vector<std::vector<double>>& gradients) {
  const std::vector<double> expected = rule_by_hand(rule, gradients);
  double norm = 0;
  CHECK(error_of(config, expected, norm) < 1e-10);
  CHECK(norm == Approx(distance(expected, std::vector<double>(expected.size()))).epsilon(1e-10));
}

struct Case {
  ParityModel model;
  const char* layout;
};
/// Every ZeRO stage over three to eight data ranks, replicas of shards, both axes beside it, tied embeddings on two stages, norms that are partial under
/// sequence parallelism, key and value heads that ranks share.
constexpr Case kCases[] = {{ParityModel::kLlama, "dp8z0"},
                           {ParityModel::kGpt2, "dp8z1"},
                           {ParityModel::kLlama, "dp8rep2z1"},
                           {ParityModel::kLlamaGrouped, "dp8rep4z3"},
                           {ParityModel::kLlamaGrouped, "tp2dp8z2-sp"},
                           {ParityModel::kLlamaGrouped, "tp4dp8z3"},
                           {ParityModel::kGpt2, "pp2dp8z0"},
                           {ParityModel::kLlamaGrouped, "tp2pp2dp8rep2z3-sp"}};

}  // namespace

TEST_CASE("robust: every rule equals that by hand over the data ranks' gradients, under every kind of layout") {
  std::map<ParityModel, std::vector<std::vector<double>>> gradients;
  for (const auto& [model, layout] : kCases) {
    if (!gradients.contains(model)) gradients[model] = gradients_of_data_ranks(config_of(model, layout, kMean));
    for (const AggregationRule rule : kRules) {
      INFO(layout << ", " << name_of_rule(rule));
      check_by_hand(config_of(model, layout, rule), rule, gradients[model]);
    }
  }
}

TEST_CASE("robust: the layouts of the pairwise table aggregate as by hand") {
  size_t checked = 0;
  for (ParityCase each : covering_parity_cases(2)) {
    ParityLayout& layout = each.layout;
    if (layout.data < 3 || layout.islands > 1 || layout.elastic) continue;
    layout.balance = layout.rebalance = false;  // other samples for each data rank; refused
    Config config = parity_config(each.model, layout, "fp64");
    config.model.dropout = 0;  // masks follow the place of a sample in the batch
    const std::vector<std::vector<double>> gradients = gradients_of_data_ranks(config);
    for (const AggregationRule rule : {kOfThree[checked % 4], kOfThree[(checked + 1) % 4]}) {
      INFO(name_of(each.model) << " " << layout.str() << ", " << name_of_rule(rule));
      check_by_hand(with_rule(config, rule), rule, gradients);
    }
    ++checked;
  }
  CHECK(checked > 10);
}

TEST_CASE("robust: training with momentum does not depend on the layout, and replicas stay equal") {
  for (const AggregationRule rule : {kTrimmedMean, kMultiKrum, kCenteredClipping}) {
    const RunRecord expected = train_on_threads(config_of(ParityModel::kLlamaGrouped, "dp8z0", rule, 0.9), 4, Device::kReference, true);
    for (const char* layout : {"dp8rep2z2", "tp2pp2dp8z3", "tp4dp8z1-sp"}) {
      INFO(layout << ", " << name_of_rule(rule));
      CHECK(difference(expected, train_on_threads(config_of(ParityModel::kLlamaGrouped, layout, rule, 0.9), 4, Device::kReference, true), 1e-10) ==
            "");
    }
  }
}

TEST_CASE("robust: training resumes bit for bit, and under another layout with as many data ranks") {
  for (const auto& [model, layout, other] : {std::tuple(ParityModel::kGpt2, "dp3z0", "tp2pp2dp3z1"),
                                             {ParityModel::kLlamaGrouped, "tp2pp2dp3z2-sp", "dp3z3"},
                                             {ParityModel::kLlama, "dp4rep2z3", "pp2dp4z0"}}) {
    for (const AggregationRule rule : {kMedian, kCenteredClipping}) {
      INFO(layout << ", " << name_of_rule(rule));
      const TemporaryDirectory directory;
      const Config config = config_of(model, layout, rule, 0.8);
      const RaggedDataset data = ragged_data(config);
      const auto steps = [&](Trainer& trainer, int first, int last) {
        std::vector<double> all;
        for (int step = first; step < last; ++step) {
          const StepResult result = trainer.step(data, step, 3e-3);
          all.insert(all.end(), {result.loss, result.grad_norm});
        }
        return all;
      };
      std::vector<double> through;
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        const std::vector<double> mine = steps(trainer, 0, 4);
        if (trainer.mesh().world.rank() == 0) through = mine;
      });
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        steps(trainer, 0, 2);
        save(trainer, directory.path, 2);
        double bytes = 0;
        for (const StateTensor& tensor : reducer_tensors(trainer)) bytes += static_cast<double>(tensor.box.numel() * size_of(tensor.dtype));
        TRIREME_CHECK(all_reduce_scalar(trainer.mesh().world, bytes, ReduceOp::kSum) == static_cast<double>(reducer_bytes(config)),
                      "bytes of the momenta in a checkpoint");
      });
      const auto resumed = [&](const Config& in, const char* note, bool same_bits) {
        on_ranks(in, [&](Trainer& trainer) {
          CheckpointReader reader(directory.path / checkpoint_name(2));
          const std::string found = load_state(trainer, reader);
          TRIREME_CHECK(note[0] == '\0' ? found.empty() : found.find(note) != found.npos, "the note about the momenta: '", found, "'");
          const std::vector<double> mine = steps(trainer, 2, 4);
          for (size_t i = 0; i < mine.size(); ++i) {
            const double expected = through[4 + i];
            TRIREME_CHECK(note[0] != '\0' || (same_bits ? mine[i] == expected : std::abs(mine[i] - expected) < 1e-10 * std::abs(expected)), "figure ",
                          i, " after the resume: ", mine[i], " instead of ", expected);
          }
        });
      };
      resumed(config, "", true);
      resumed(config_of(model, other, rule, 0.8), "", false);
      resumed(config_of(model, "dp6z1", rule, 0.8), "of another number of data ranks", false);
      resumed(config_of(model, layout, kMedian, 0), "are dropped", false);
    }
  }
}

TEST_CASE("robust: a checkpoint without momenta is told to the user") {
  const TemporaryDirectory directory;
  on_ranks(config_of(ParityModel::kLlama, "dp3z1", kMedian), [&](Trainer& trainer) {
    trainer.initialise();
    save(trainer, directory.path, 1);
  });
  on_ranks(config_of(ParityModel::kLlama, "dp3z1", kMedian, 0.5), [&](Trainer& trainer) {
    CheckpointReader reader(directory.path / checkpoint_name(1));
    TRIREME_CHECK(load_state(trainer, reader).find("which start at zero") != std::string::npos, "no note");
  });
}

TEST_CASE("robust: memory and bytes on the wire are forecast exactly") {
  for (const auto& [model, layout] : {Case{ParityModel::kGpt2, "dp3z0"},
                                      {ParityModel::kLlamaGrouped, "tp2pp2dp3z2-sp"},
                                      {ParityModel::kLlama, "dp4rep2z3"},
                                      {ParityModel::kGpt2, "tp2dp4rep2z1"}}) {
    std::map<AggregationRule, std::vector<double>> over_world;  // bytes by rank
    for (const AggregationRule rule : {kMean, kTrimmedMean, kGeometricMedian}) {
      const double momentum = rule == kGeometricMedian ? 0.9 : 0;
      const Config config = config_of(model, layout, rule, momentum);
      const RaggedDataset data = ragged_data(config);
      const MeasuredRun run = measured_run(config, data);
      for (int rank = 0; rank < world_of(config); ++rank) {
        INFO(layout << ", " << name_of_rule(rule) << ", rank " << rank);
        const CommunicationRecord& record = run.communication[static_cast<size_t>(rank)];
        over_world[rule].push_back(record.entry("world", "all_reduce").wire_bytes);
        if (rule == kMean) continue;
        const RankMemory forecast = checked_forecast(config, run, rank);
        CHECK(record.entry("shard", "reduce_scatter").calls == 0);
        CHECK(record.entry("replicate", "all_reduce").calls == 0);
        const double sent = record.entry("data", "all_to_all_v").wire_bytes + record.entry("replicate", "all_gather").wire_bytes;
        CHECK(3 * forecast.reduced_bytes == Approx(sent).epsilon(1e-12));
        const double n = static_cast<double>(*config.parallel.data), world = world_of(config), scalars = n + (rule == kTrimmedMean ? n : n * n);
        CHECK(over_world[rule].back() - over_world[kMean][static_cast<size_t>(rank)] == Approx(3 * 2 * (world - 1) / world * 8 * scalars));
      }
    }
  }
}

TEST_CASE("robust: a run records who was suspected, how far away and how often") {
  const TemporaryDirectory directory;
  write_tokens(directory.path / "tokens", 12 * 400 + 1);
  ParityLayout layout;
  layout.data = 4;
  layout.zero = 2;
  Config config = with_rule(parity_config(ParityModel::kLlama, layout, "fp32"), kMedian);
  config.run.directory = directory.path / "run";
  config.model.vocab_size = 256;
  config.data.train = {directory.path / "tokens"};
  config.training.steps = 6;
  REQUIRE(run_disturbed(config, Fault{.step = 3, .rank = 2, .group = "data", .verb = "all_to_all_v", .change = scaled(-100), .every = true}) == "");
  const report::RunRecord run = report::read_run(directory.path / "run");
  REQUIRE(run.steps.size() == 6);
  for (size_t step = 0; step < 6; ++step) CHECK(run.steps.suspects[step].size() == (step == 2 ? 1U : 0U));
  const std::vector<report::Suspect> suspects = report::suspects_of(run);
  REQUIRE(suspects.size() == 1);
  CHECK(suspects[0].rank == 2);
  CHECK(suspects[0].steps == 1);
  CHECK(suspects[0].farthest > 10);
  const report::EventRecord* const event = run.last("suspects");
  REQUIRE(event != nullptr);
  CHECK(event->fields["steps"] == 6);
  CHECK(event->fields["ranks"]["2"]["steps"] == 1);

  config.run.directory = directory.path / "nan";
  REQUIRE(run_disturbed(config, Fault{.step = 4, .rank = 1, .group = "data", .verb = "all_to_all_v", .change = not_a_number(), .every = true}) == "");
  const report::RunRecord other = report::read_run(directory.path / "nan");
  const std::vector<report::Suspect> missing = report::suspects_of(other);
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].rank == 1);
  CHECK(missing[0].left_out == 1);
  CHECK(missing[0].farthest == 0);
  CHECK(other.first("rejected_step") == nullptr);
  CHECK(report::suspects_text(missing, 6) == "data rank 1 in 1 of 6 steps, without a finite gradient in 1");
}

TEST_CASE("robust: a step with more than f gradients that are not finite is rejected on every rank") {
  for (const char* layout : {"dp3z0", "tp2dp3z2", "pp2dp3z3"}) {
    INFO(layout);
    const Config config = config_of(ParityModel::kLlama, layout, kTrimmedMean, 0.9, "fp32");
    const RaggedDataset data = ragged_data(config);
    run_ranks(world_of(config), [&](Communicator& world) {
      int64_t step = 1;
      FaultInjector injector(std::nullopt, world.rank(), [&] { return step; });
      const std::unique_ptr<Communicator> disturbed = observed(world, injector.observer());
      Arena arena(Device::kCpu, true);
      Context ctx{Device::kCpu, &arena, 1};
      Trainer trainer(ctx, *disturbed, config, true);
      if (trainer.mesh().data->rank() > 0)
        injector.set(Fault{.step = 2, .rank = world.rank(), .group = "data", .verb = "all_to_all_v", .change = not_a_number(), .every = true});
      trainer.initialise();
      TRIREME_CHECK(trainer.step(data, 0, 1e-3).accepted, "a clean step");
      const std::vector<double> state(trainer.owned_boxes().front().weight.data<float>(),
                                      trainer.owned_boxes().front().weight.data<float>() + trainer.owned_boxes().front().weight.numel());
      step = 2;
      const StepResult rejected = trainer.step(data, 1, 1e-3);
      TRIREME_CHECK(!rejected.accepted && !rejected.offender.empty(), "a step of two wrong gradients of three");
      const float* const weight = trainer.owned_boxes().front().weight.data<float>();
      for (size_t i = 0; i < state.size(); ++i) TRIREME_CHECK(weight[i] == static_cast<float>(state[i]), "a rejected step has changed a weight");
      step = 3;
      const StepResult next = trainer.step(data, 2, 1e-3);
      TRIREME_CHECK(next.accepted && std::isfinite(next.grad_norm), "the step after it");
    });
  }
}

}  // namespace trireme::test
