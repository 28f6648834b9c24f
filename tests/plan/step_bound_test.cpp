// The lower bound that prunes a search: no schedule is faster, and the bound is tight enough to prune.
#include "trainer/plan/step_bound.h"

#include <algorithm>
#include <random>

#include "kernels/core/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/catch.h"

namespace trireme {
namespace {

double simulated_seconds(const ActionLists& plan, const std::vector<PartSeconds>& stages, const std::vector<double>& transfers) {
  const Simulation run = simulate(plan, [&](const Action& action) {
    const auto stage = static_cast<size_t>(action.stage);
    switch (action.type) {
      case ActionType::kForward: return stages[stage].forward;
      case ActionType::kBackward: return stages[stage].input_gradient + stages[stage].weight_gradient;
      case ActionType::kBackwardInput: return stages[stage].input_gradient;
      case ActionType::kBackwardWeight: return stages[stage].weight_gradient;
      case ActionType::kRecvForward: return transfers[stage - 1];
      case ActionType::kRecvBackward: return transfers[stage];
      default: return 0.0;
    }
  });
  double last = 0;
  for (const Timeline& rank : run.ranks) last = std::max(last, rank.back().end);
  return last;
}

}  // namespace

TEST_CASE("no schedule ends before its bound, for any stage and transfer times") {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> seconds(0.1, 3), transfer(0, 1);
  for (const ScheduleKind kind : kScheduleKinds) {
    double nearest = 0;
    for (const int pipeline : {2, 3, 4}) {
      for (const int microbatches : {1, 2, 3, 4, 8, 12}) {
        const int virtual_stages = default_virtual_stages(kind);
        const ActionLists plan = make_schedule(kind, pipeline, virtual_stages, microbatches);
        const Layout layout{.pipeline = pipeline, .schedule = kind, .virtual_stages = virtual_stages};
        for (int trial = 0; trial < 20; ++trial) {
          std::vector<PartSeconds> stages(static_cast<size_t>(pipeline * virtual_stages));
          std::vector<double> transfers;
          for (PartSeconds& stage : stages)
            stage = {.forward = seconds(random), .input_gradient = seconds(random), .weight_gradient = seconds(random)};
          for (size_t s = 0; s + 1 < stages.size(); ++s) transfers.push_back(transfer(random));
          const double bound = step_seconds_lower_bound(layout, microbatches, stages, transfers), step = simulated_seconds(plan, stages, transfers);
          CAPTURE(name_of(kind), pipeline, microbatches, bound, step);
          CHECK(bound <= step * (1 + 1e-12));
          CHECK(step_seconds_lower_bound(layout, microbatches, stages) <= bound);
          nearest = std::max(nearest, bound / step);
        }
      }
    }
    CAPTURE(name_of(kind));
    CHECK(nearest > 0.9);
  }
}

}  // namespace trireme
