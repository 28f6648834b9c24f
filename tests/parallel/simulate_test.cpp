#include "parallel/pipeline/simulate.h"

#include <algorithm>
#include <limits>

#include "kernels/core/check.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::compute_list;
using test::one_stage_each;

namespace {

/// F = 1 and B = 2 for a whole stage, whatever its number of parts; all other actions are free.
double unit_cost(const Action& action) {
  if (is_transfer(action.type)) return 0;
  return action.type == ActionType::kBackward ? 2 : is_compute(action.type) ? 1 : 0;
}

/// Seconds of all layers of a rank; one action computes one of `virtual_stages` equal shares.
struct Costs {
  double forward = 1, input = 1, weight = 1, transfer = 0;
  int virtual_stages = 1;
  double operator()(const Action& action) const {
    if (!is_compute(action.type)) return is_receive(action.type) ? transfer : 0;
    const double whole = action.type == ActionType::kForward          ? forward
                         : action.type == ActionType::kBackwardInput  ? input
                         : action.type == ActionType::kBackwardWeight ? weight
                                                                      : input + weight;
    return whole / virtual_stages;
  }
  double all() const { return forward + input + weight; }
};

const TimelineEvent& event_of(const Simulation& run, size_t rank, const std::string& name) {
  for (const TimelineEvent& event : run.ranks[rank])
    if (to_string(event.action) == name) return event;
  throw InternalError("no event " + name);
}

}  // namespace

TEST_CASE("the bubble of uniform stages is (p-1)/(m+p-1), compute-only and lowered") {
  for (int p = 1; p <= 8; ++p) {
    const std::vector<StageUnits> units(static_cast<size_t>(p), StageUnits{{{0}}, 1, -1});
    for (int m = 1; m <= 16; ++m) {
      for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
        const ActionLists compute = make_schedule(kind, p, 1, m);
        for (const ActionLists& lists : {compute, lower(compute, units, {})}) {
          const Simulation run = simulate(lists, unit_cost);
          CHECK(run.step_seconds == 3.0 * (m + p - 1));
          CHECK(run.bubble == Approx(static_cast<double>(p - 1) / (m + p - 1)).margin(1e-15).epsilon(1e-15));
          for (int s = 0; s < p; ++s) CHECK(max_in_flight(lists[static_cast<size_t>(s)]) == (kind == ScheduleKind::kGPipe ? m : std::min(m, p - s)));
        }
      }
    }
  }
}

TEST_CASE("bubble and peak of every kind equal their closed forms, compute-only and lowered") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const auto check = [&](ScheduleKind kind, int v, bool exact, double bubble, const auto& peak) {
        CAPTURE(name_of(kind), p, v, m);
        const std::vector<StageUnits> units(static_cast<size_t>(p * v), StageUnits{{{0}}, 1});
        const ActionLists compute = make_schedule(kind, p, v, m);
        const Simulation run = simulate(compute, Costs{.virtual_stages = v});
        CHECK(simulate(lower(compute, units, {}), Costs{.virtual_stages = v}).step_seconds == Approx(run.step_seconds));
        const double plain = 3.0 * (m + p - 1);  // of 1F1B
        CHECK(run.step_seconds <= plain + 1e-9);
        if (exact) CHECK(run.step_seconds == Approx(3 * m + bubble));
        if (exact) CHECK(run.bubble == Approx(bubble / (3 * m + bubble)).margin(1e-12));
        for (int rank = 0; rank < p; ++rank) CHECK(max_in_flight(compute[static_cast<size_t>(rank)]) == peak(rank));
      };
      check(ScheduleKind::kGPipe, 1, true, 3 * (p - 1), [&](int) { return m; });
      check(ScheduleKind::k1F1B, 1, true, 3 * (p - 1), [&](int rank) { return std::min(m, p - rank); });
      check(ScheduleKind::kZbH1, 1, m >= p, p - 1, [&](int) { return std::min(m, p); });
      check(ScheduleKind::kZbH2, 1, m >= 2 * p - 1, 0, [&](int) { return std::min(m, 2 * p - 1); });
      for (int v = 2; v <= 4; ++v) {
        const int groups = std::max(1, m / p), largest = (m + groups - 1) / groups;
        const auto peak = [&](int rank) { return std::min(v * m, (v - 1) * largest + 2 * (p - 1 - rank) + 1); };
        check(ScheduleKind::kInterleaved1F1B, v, m % p == 0, 3.0 * (p - 1) / v, peak);
      }
      const ActionLists v_shaped = zb_v(p, m);
      const Simulation vee = simulate(v_shaped, Costs{.virtual_stages = 2});
      if (m >= 2 * p - 1) CHECK(vee.step_seconds == Approx(3 * m));
      CHECK(vee.step_seconds <= 3.0 * (m + p - 1) + 1e-9);
      int most = 0;
      for (const ActionList& list : v_shaped) most = std::max(most, max_in_flight(list));
      CHECK(most == std::min(2 * p, 2 * m));
    }
  }
}

TEST_CASE("zero bubble with unequal costs: (p-1)(F+I-W) and (p-1)(F+I-2W)") {
  const Costs costs{.forward = 1.0, .input = 1.125, .weight = 0.75};
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {2 * p, 3 * p + 1}) {
      CHECK(simulate(one_forward_one_backward(p, m), costs).step_seconds == Approx((m + p - 1) * costs.all()));
      CHECK(simulate(zb_h1(p, m), costs).step_seconds == Approx(m * costs.all() + (p - 1) * (1.0 + 1.125 - 0.75)));
      CHECK(simulate(zb_h2(p, m), costs).step_seconds == Approx(m * costs.all() + (p - 1) * (1.0 + 1.125 - 1.5)));
    }
  }
}

namespace {

/// Profiled milliseconds and calculated bubble rates of Qi et al. 2024, arXiv:2401.10241, tables 9 and 5. `chunks`: virtual stages of 1F1B-I, one
/// layer each: (layers + 2) / p, the embedding and the head counting as layers.
struct PublishedBubble {
  const char* id;
  int ranks, microbatches, chunks;
  Costs costs;
  double one_f_one_b, interleaved, h1, h2;
};
const PublishedBubble kPublished[] = {
    {"zb-t9-1.5B-m24", 8, 24, 3, {18.522, 18.086, 9.337, 0.601}, 0.2431, 0.1055, 0.1585, 0.1083},
    {"zb-t9-1.5B-m32", 8, 32, 3, {18.513, 18.086, 9.331, 0.626}, 0.1985, 0.0818, 0.1242, 0.0837},
    {"zb-t9-1.5B-m64", 8, 64, 3, {18.546, 18.097, 9.321, 0.762}, 0.1240, 0.0443, 0.0674, 0.0444},
    {"zb-t9-6.2B-m24", 8, 24, 4, {29.718, 29.444, 19.927, 0.527}, 0.2347, 0.0808, 0.1323, 0.0698},
    {"zb-t9-6.2B-m32", 8, 32, 4, {29.802, 29.428, 19.530, 0.577}, 0.1898, 0.0628, 0.1045, 0.0559},
    {"zb-t9-6.2B-m64", 8, 64, 4, {29.935, 29.621, 19.388, 0.535}, 0.1091, 0.0320, 0.0554, 0.0294},
    {"zb-t9-28.3B-m96", 32, 96, 2, {10.419, 10.207, 7.715, 0.408}, 0.2646, 0.1493, 0.1421, 0.0641},
    {"zb-t9-28.3B-m128", 32, 128, 2, {10.408, 10.204, 7.703, 0.408}, 0.2168, 0.1164, 0.1106, 0.0490},
    {"zb-t9-28.3B-m256", 32, 256, 2, {10.402, 10.248, 7.698, 0.460}, 0.1352, 0.0624, 0.0594, 0.0257},
};

}  // namespace

TEST_CASE("published bubbles from published profiles, within a tenth of a percentage point") {
  for (const PublishedBubble& row : kPublished) {
    CAPTURE(row.id);
    const int p = row.ranks, m = row.microbatches, v = row.chunks;
    CHECK(simulate(one_forward_one_backward(p, m), row.costs).bubble == Approx(row.one_f_one_b).margin(0.001).epsilon(0));
    CHECK(simulate(zb_h1(p, m), row.costs).bubble == Approx(row.h1).margin(0.001).epsilon(0));
    CHECK(simulate(zb_h2(p, m), row.costs).bubble == Approx(row.h2).margin(0.001).epsilon(0));

    // In the authors' calculation only the first micro-batch of each group of p waits for the transfer between last and first rank. Here all do.
    Costs costs = row.costs;
    costs.virtual_stages = v;
    const auto first_of_group_only = [&](const Action& action) {
      const int from = action.stage + (action.type == ActionType::kRecvForward ? -1 : 1);
      const bool seam = is_receive(action.type) && action.stage / p != from / p;
      return seam && action.microbatch % p != 0 ? -std::numeric_limits<double>::infinity() : costs(action);
    };
    const ActionLists lists = interleaved_1f1b(p, v, m);
    const Simulation theirs = simulate(lists, first_of_group_only), ours = simulate(lists, costs);
    CHECK(theirs.bubble == Approx(row.interleaved).margin(0.001).epsilon(0));
    CHECK(ours.step_seconds == Approx(m * costs.all() + (p - 1) * costs.all() / v + 2 * (v * p - 1) * costs.transfer));
    CHECK(ours.step_seconds - theirs.step_seconds == Approx(p * costs.transfer));

    // Receives are posted early enough that the lowered lists have the same bubble.
    for (const ScheduleKind kind : kScheduleKinds) {
      costs.virtual_stages = kind == ScheduleKind::kInterleaved1F1B ? v : default_virtual_stages(kind);
      const ActionLists compute = make_schedule(kind, p, costs.virtual_stages, m);
      const std::vector<StageUnits> units(static_cast<size_t>(p * costs.virtual_stages), StageUnits{{{0}}, 1});
      CHECK(simulate(lower(compute, units, {}), costs).bubble == Approx(simulate(compute, costs).bubble).margin(1e-9));
    }
  }
}

TEST_CASE("max_in_flight equals the peak of the simulation") {
  const ActionLists lists = one_forward_one_backward(4, 6);
  const Simulation run = simulate(lists, unit_cost);
  for (size_t rank = 0; rank < 4; ++rank) {
    int held = 0, peak = 0;
    for (const TimelineEvent& event : run.ranks[rank]) {
      held += event.action.type == ActionType::kForward ? 1 : -1;
      peak = std::max(peak, held);
    }
    CHECK(max_in_flight(lists[rank]) == peak);
  }
}

TEST_CASE("a transfer overlaps compute and only its reader waits for it") {
  const std::vector<StageUnits> units(2, StageUnits{{{0}}, 1, -1});
  const auto cost = [](const Action& a) { return is_transfer(a.type) ? 0.25 : unit_cost(a); };
  const Simulation run = simulate(lower(forward_only(one_stage_each(2), 3), units, {.receive_ahead = false}), cost);
  CHECK(event_of(run, 0, "0F1.0").begin == 1.0);  // not held up by the send of micro-batch 0
  CHECK(event_of(run, 0, "0SEND_F0").begin == 1.0);
  CHECK(event_of(run, 0, "0SEND_F0").end == 1.25);
  CHECK(event_of(run, 1, "1RECV_F0").begin == 0.0);
  CHECK(event_of(run, 1, "1RECV_F0").end == 1.25);
  CHECK(event_of(run, 1, "1F0.0").begin == 1.25);
  CHECK(event_of(run, 1, "1RECV_F1").begin == 2.25);  // its receiver reaches it only after the first forward
  CHECK(event_of(run, 1, "1F1.0").begin == 2.5);
  CHECK(run.barrier_seconds == 4.75);
  CHECK(run.step_seconds == 3.5);  // of rank 1, from its first forward: a posted receive does not begin the step
  const Simulation ahead = simulate(lower(forward_only(one_stage_each(2), 3), units, {}), cost);
  CHECK(event_of(ahead, 1, "1RECV_F1").begin == 0.0);
  CHECK(event_of(ahead, 1, "1F1.0").begin == 2.25);
  CHECK(ahead.step_seconds == 3.0);
}

TEST_CASE("a compute-only schedule has its transfers where data goes to another rank") {
  const ActionLists vee{compute_list(0, "F0 I0 W0"), compute_list(1, "F0 I0 W0")};
  const Simulation run = simulate(vee, [](const Action& a) { return is_receive(a.type) ? 0.25 : unit_cost(a); });
  CHECK(event_of(run, 1, "1F0").begin == 1.25);
  CHECK(event_of(run, 0, "0I0").begin == 3.5);
  CHECK(run.step_seconds == 5.5);
  const ActionLists own{compute_list(0, "F0")};
  ActionList both = own[0];
  both.push_back({ActionType::kForward, 1, 0});
  CHECK(simulate({both}, [](const Action& a) { return is_receive(a.type) ? 0.25 : 1.0; }).step_seconds == 2.0);
}

TEST_CASE("an uneven stage sets the pace") {
  const auto cost = [](const Action& a) { return is_transfer(a.type) ? 0.0 : a.stage == 1 ? 3.0 : 1.0; };
  const Simulation run = simulate(forward_only(one_stage_each(3), 4), cost);
  CHECK(run.step_seconds == 12.0);  // of the slow stage, which never waits once it has begun
  CHECK(event_of(run, 1, "1F0").begin == 1.0);
  CHECK(event_of(run, 2, "2F3").end == 14.0);
}

TEST_CASE("split backwards: the neighbour waits for I, not for W") {
  const ActionLists lists{compute_list(0, "F0 I0 W0"), compute_list(1, "F0 I0 W0")};
  const Simulation run = simulate(lists, [](const Action& a) { return a.type == ActionType::kBackwardWeight ? 5.0 : unit_cost(a); });
  CHECK(event_of(run, 0, "0I0").begin == 3.0);
  CHECK(event_of(run, 1, "1W0").end == 8.0);
}

TEST_CASE("a schedule that cannot run is refused") {
  CHECK_THROWS_WITH(simulate({compute_list(0, "B0 F0"), compute_list(1, "F0 B0")}, unit_cost), Catch::Contains("is stuck at"));
  CHECK_THROWS_WITH(simulate({compute_list(0, "F1"), compute_list(1, "F0 F1")}, unit_cost), Catch::Contains("rank 1 is stuck at 1F0"));
}
