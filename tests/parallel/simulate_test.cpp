#include "parallel/pipeline/simulate.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::compute_list;

namespace {

/// F = 1 and B = 2 for a whole stage, whatever its number of parts; all else free.
double unit_cost(const Action& action) { return action.type == ActionType::kForward ? 1 : action.type == ActionType::kBackward ? 2 : 0; }

const TimelineEvent& event_of(const Simulation& run, size_t rank, const std::string& name) {
  for (const TimelineEvent& event : run.ranks[rank])
    if (to_string(event.action) == name) return event;
  throw InternalError("no event " + name);
}

}  // namespace

TEST_CASE("the bubble of uniform stages is (p-1)/(m+p-1), compute-only and lowered alike") {
  for (int p = 1; p <= 8; ++p) {
    const std::vector<StageUnits> units(static_cast<size_t>(p), StageUnits{{{0}}, 1, -1});
    for (int m = 1; m <= 16; ++m) {
      for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
        const PipelinePlan compute = make_plan(kind, p, m);
        for (const PipelinePlan& plan : {compute, lower(compute, units, {})}) {
          const Simulation run = simulate(plan, unit_cost);
          CHECK(run.step_seconds == 3.0 * (m + p - 1));
          CHECK(run.bubble == Approx(static_cast<double>(p - 1) / (m + p - 1)).margin(1e-15).epsilon(1e-15));
          for (int s = 0; s < p; ++s) CHECK(run.peak_in_flight[static_cast<size_t>(s)] == (kind == ScheduleKind::kGPipe ? m : std::min(m, p - s)));
        }
      }
    }
  }
}

TEST_CASE("the peak in flight is what happens in time") {
  const Simulation run = simulate(one_forward_one_backward(4, 6), unit_cost);
  for (size_t rank = 0; rank < 4; ++rank) {
    int held = 0, peak = 0;
    for (const TimelineEvent& event : run.ranks[rank]) {
      held += event.action.type == ActionType::kForward ? 1 : -1;
      peak = std::max(peak, held);
    }
    CHECK(run.peak_in_flight[rank] == peak);
  }
}

TEST_CASE("a transfer overlaps compute and only its reader waits for it") {
  const std::vector<StageUnits> units(2, StageUnits{{{0}}, 1, -1});
  const auto cost = [](const Action& a) { return is_transfer(a.type) ? 0.25 : unit_cost(a); };
  const Simulation run = simulate(lower(forward_only(2, 3), units, {}), cost);
  CHECK(event_of(run, 0, "0F1.0").begin == 1.0);  // not held up by the send of micro-batch 0
  CHECK(event_of(run, 0, "0SEND_F0").begin == 1.0);
  CHECK(event_of(run, 0, "0SEND_F0").end == 1.25);
  CHECK(event_of(run, 1, "1RECV_F0").begin == 0.0);
  CHECK(event_of(run, 1, "1RECV_F0").end == 1.25);
  CHECK(event_of(run, 1, "1F0.0").begin == 1.25);
  CHECK(event_of(run, 1, "1RECV_F1").begin == 2.25);  // its own end is reached after the first forward
  CHECK(event_of(run, 1, "1F1.0").begin == 2.5);
  CHECK(run.step_seconds == 4.75);
}

TEST_CASE("an uneven stage sets the pace") {
  const auto cost = [](const Action& a) { return a.stage == 1 ? 3.0 : 1.0; };
  const Simulation run = simulate(forward_only(3, 4), cost);
  CHECK(run.step_seconds == 12.0);  // of the slow stage, which never waits once it has begun
  CHECK(event_of(run, 1, "1F0").begin == 1.0);
  CHECK(event_of(run, 2, "2F3").end == 14.0);
}

TEST_CASE("split backwards: the neighbour waits for I, not for W") {
  const PipelinePlan plan{compute_list(0, "F0 I0 W0"), compute_list(1, "F0 I0 W0")};
  const Simulation run = simulate(plan, [](const Action& a) { return a.type == ActionType::kBackwardWeight ? 5.0 : 1.0; });
  CHECK(event_of(run, 0, "0I0").begin == 3.0);
  CHECK(event_of(run, 1, "1W0").end == 8.0);
}

TEST_CASE("a plan that cannot run is refused") {
  CHECK_THROWS_WITH(simulate({compute_list(0, "B0 F0"), compute_list(1, "F0 B0")}, unit_cost), Catch::Contains("never gets past"));
  CHECK_THROWS_WITH(simulate({compute_list(0, "F1"), compute_list(1, "F0 F1")}, unit_cost), Catch::Contains("rank 1 never gets past 1F0"));
}
