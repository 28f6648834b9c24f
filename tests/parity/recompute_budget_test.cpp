// The recompute policy of training.recompute=budget: it fits, it is the cheapest that does, and training stays bit-identical.
#include <algorithm>
#include <array>

#include "parallel/comm/null.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/parity.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trainer.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

Config with_budget(Config config, int64_t bytes) {
  config.training.recompute = RecomputeMode::kBudget;
  config.training.recompute_budget = bytes;
  return config;
}

int world_of(const Config& config) { return static_cast<int>(config.parallel.tensor * config.parallel.pipeline * *config.parallel.data); }

int64_t total_peak(const Config& config, int rank, const std::vector<Recompute>& plan) {
  return forecast_memory(config, rank, world_of(config), plan).peak_total;
}

/// Recomputed FLOPs per token of the policy's blocks [begin, end), by the sizes of the layers' weights.
double flops_again(const Config& config, const std::vector<Recompute>& plan, size_t begin, size_t end) {
  const ModelConfig& m = config.model;
  const double attention = static_cast<double>(2 * m.heads * *m.head_size * config.training.sequence_length);
  double weights = 0;
  for (const ParamSpec& spec : whole_model(m))
    if (spec.name.starts_with("blocks.0.") && spec.dims == 2 && spec.name.find("mlp.down") == std::string::npos)
      weights += static_cast<double>(spec.shape[0] * spec.shape[1]);
  double sum = 0;
  for (size_t block = begin; block < end; ++block)
    sum += plan[block] == Recompute::kNone ? 0 : plan[block] == Recompute::kSelective ? attention : attention + 2 * weights;
  return sum;
}

/// Every policy of full, then selective, then no recomputation for blocks [begin, end).
std::vector<std::vector<Recompute>> all_plans(size_t blocks, size_t begin, size_t end) {
  std::vector<std::vector<Recompute>> plans;
  for (size_t full = begin; full <= end; ++full) {
    for (size_t selective = full; selective <= end; ++selective) {
      std::vector<Recompute> plan(blocks, Recompute::kNone);
      std::fill(plan.begin() + static_cast<ptrdiff_t>(begin), plan.begin() + static_cast<ptrdiff_t>(full), Recompute::kFull);
      std::fill(plan.begin() + static_cast<ptrdiff_t>(full), plan.begin() + static_cast<ptrdiff_t>(selective), Recompute::kSelective);
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

}  // namespace

TEST_CASE("a budget selects the policy that fits with the fewest recomputed FLOPs, checked by exhaustive search") {
  for (const int64_t sequence : {12, 96}) {  // in short sequences, full recomputation of a block costs as much as attention of many blocks
    const ParityLayout layout = ParityLayout{{.pipeline = 2}}.with_layers(8, {5, 3});
    Config config = parity_config(ParityModel::kLlamaGrouped, layout, "bf16");
    config.training.sequence_length = sequence;
    config.model.max_positions = sequence;
    std::vector<int64_t> peaks;  // of the first rank, with two micro-batches of five blocks in flight
    for (const auto& plan : all_plans(8, 0, 5)) peaks.push_back(total_peak(config, 0, plan));
    std::vector<int64_t> budgets = peaks;
    std::ranges::sort(budgets);
    CHECK(budgets.back() > budgets.front());
    double before = flops_again(config, all_plans(8, 0, 5).back(), 0, 5) + 1e12;
    for (const int64_t budget : budgets) {
      const Config its = with_budget(config, budget);
      INFO("sequences of " << sequence << ", budget " << budget);
      if (budget < peaks.back() || budget < total_peak(config, 1, all_plans(8, 5, 8).back())) {  // less than full recomputation needs
        CHECK_THROWS_AS(recompute_policy(its), ConfigError);
        continue;
      }
      const std::vector<Recompute> plan = recompute_policy(its);
      for (const int rank : {0, 1}) CHECK(forecast_memory(its, rank, 2).peak_total <= budget);
      double least = 1e30;
      for (size_t i = 0; i < peaks.size(); ++i)
        if (peaks[i] <= budget) least = std::min(least, flops_again(config, all_plans(8, 0, 5)[i], 0, 5));
      CHECK(flops_again(config, plan, 0, 5) == least);
      CHECK(flops_again(config, plan, 0, 5) <= before);  // more memory, less recomputation
      before = flops_again(config, plan, 0, 5);
    }
    CHECK(before == 0);
  }
}

TEST_CASE("a budget is met on every rank of every layout, with virtual stages too, and training is bit-identical") {
  std::vector<ParityLayout> all(6);
  all[0] = {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}};
  all[1] = ParityLayout{{.pipeline = 2, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}}.with_layers(6);
  all[2] = ParityLayout{{.pipeline = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}.with_layers(13);
  all[3] = {{.data = 3, .zero = 2, .micro_batch = 2, .schedule = ScheduleKind::kGPipe}};
  all[4] = ParityLayout{{.pipeline = 3, .data = 2, .zero = 3}}.with_layers(6, {0, 6, 0});
  all[5] = ParityLayout{{.pipeline = 2, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}}.with_layers(6, {0, 3, 3, 0});
  for (const ParityLayout& layout : all) {
    const Config config = parity_config(ParityModel::kGpt2Dropout, layout, "fp64");
    const auto layers = static_cast<size_t>(config.model.layers);
    const auto most = [&](Recompute what) {
      int64_t bytes = 0;
      for (int rank = 0; rank < layout.world(); ++rank) bytes = std::max(bytes, total_peak(config, rank, std::vector<Recompute>(layers, what)));
      return bytes;
    };
    const int64_t full = most(Recompute::kFull), none = most(Recompute::kNone);
    const Config half = with_budget(config, (full + none) / 2);
    const std::vector<Recompute> plan = recompute_policy(half);
    INFO(layout.str() << "\n" << recompute_text(half, lowered_schedule(half).stage_rank, plan));
    CHECK(full < none);
    CHECK(std::ranges::count(plan, Recompute::kNone) < static_cast<int64_t>(layers));
    CHECK(std::ranges::count(plan, Recompute::kFull) < static_cast<int64_t>(layers));
    for (int rank = 0; rank < layout.world(); ++rank) CHECK(forecast_memory(half, rank, layout.world()).peak_total <= (full + none) / 2);
    CHECK(recompute_policy(with_budget(config, none)) == std::vector<Recompute>(layers, Recompute::kNone));
    CHECK(train_on_threads(half, 2, Device::kReference, true) == train_on_threads(config, 2, Device::kReference, true));
  }
}

TEST_CASE("a budget below full recomputation is refused with the rank that needs most and its bytes") {
  const ParityLayout layout = ParityLayout{{.pipeline = 3}}.with_layers(7, {2, 4, 1});
  const Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  const std::vector<Recompute> full(7, Recompute::kFull);
  int64_t most = 0;
  int place = 0;
  for (int rank = 0; rank < 3; ++rank) {
    if (total_peak(config, rank, full) > most) place = rank;
    most = std::max(most, total_peak(config, rank, full));
  }
  const std::string words = concat("pipeline rank ", place, " needs ", most, " bytes even with maximal recomputation of its ",
                                   std::array{"2 blocks", "4 blocks", "1 block"}[static_cast<size_t>(place)], ";");
  check_throws<ConfigError>([&] { recompute_policy(with_budget(config, most - 1)); }, {words});
  recompute_policy(with_budget(config, most));
}

TEST_CASE("a recompute budget does not apply without training") {
  Config config = with_budget(parity_config(ParityModel::kLlama, {}, "fp32"), 1);
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena, 1, nullptr};
  NullCommunicator world(0, 1, "world");
  Trainer(ctx, world, config, false);
  CHECK_THROWS_AS(Trainer(ctx, world, config, true), ConfigError);
}

TEST_CASE("the policy of a long pipeline is found with few forecasts, and its text shows the kept blocks") {
  const ParityLayout layout = ParityLayout{{.pipeline = 16}}.with_layers(40);
  Config config = parity_config(ParityModel::kGpt2, layout, "bf16");
  config.training.global_batch_size = 32;
  const auto peak = [&](Recompute what) { return total_peak(config, 0, std::vector<Recompute>(40, what)); };
  const Config half = with_budget(config, (peak(Recompute::kNone) + peak(Recompute::kFull)) / 2);
  const std::vector<Recompute> plan = recompute_policy(half);
  CHECK(std::ranges::count(plan, Recompute::kNone) > 20);  // the last ranks have few micro-batches in flight
  CHECK(plan.front() == Recompute::kFull);
  const std::string text = recompute_text(half, lowered_schedule(half).stage_rank, plan);
  CHECK(std::ranges::count(text, '\n') == 15);
  CHECK(text.starts_with("recompute: rank 0 keeps "));
  CHECK(text.find("recompute: rank 15 keeps 3 of 3 blocks, 0 selective, 0 full") != std::string::npos);
}

}  // namespace trireme::test
