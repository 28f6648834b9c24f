// The lists of steps in which other pipelines compute what a relieved rank does not: proven for every place of that rank, and simulated.
#include "parallel/pipeline/reroute.h"

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "parallel/mesh.h"
#include "parallel/pipeline/simulate.h"
#include "parallel/pipeline/validate.h"
#include "parallel/pipeline/world.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::ends_meet;
using test::toy_units;

namespace {

/// A world whose lists are rerouted.
struct RoutedWorld {
  MeshShape mesh;
  std::vector<StageUnits> units;
  ActionLists undisturbed;  ///< by pipeline rank
  Rerouting rerouting;
  std::vector<ActionLists> lists;  ///< by data rank and pipeline rank

  RoutedWorld(const MeshShape& shape, const ActionLists& compute, const std::vector<StageUnits>& of_stages, const LoweringPolicy& policy,
              int microbatches, int from, const std::vector<PipelinePlace>& relieved)
      : mesh(shape),
        units(of_stages),
        undisturbed(lower(compute, units, policy)),
        rerouting(make_rerouting(mesh.data(), mesh.pipeline, microbatches, from, relieved)),
        lists(reroute(undisturbed, rerouting)) {}
  std::vector<std::string> validated(bool training = true) const { return validate(lists_of_ranks(lists, mesh), mesh, units, rerouting, training); }
};

void check_proven(const RoutedWorld& world, bool training = true) {
  const std::vector<std::string> violations = world.validated(training);
  if (!violations.empty()) FAIL(violations.front());
}

std::string collectives_of(const ActionList& list) {
  std::string text;
  for (const Action& action : list)
    if (!is_compute(action.type) && !is_transfer(action.type)) text += to_string(action) + " ";
  return text;
}

int count_in_flight(const ActionList& list, ActionType type, int stage) {
  return static_cast<int>(std::ranges::count_if(list, [&](const Action& a) { return a.type == type && a.stage == stage && a.part == 0; }));
}

/// Four lifetimes of parameters and gradients, with transfers that overlap compute or block.
const std::array kPolicies{LoweringPolicy{}, LoweringPolicy{.unshard_each_use = true, .reduce_each_microbatch = true},
                           LoweringPolicy{.reduce_each_microbatch = true, .prefetch = 0, .receive_ahead = false},
                           LoweringPolicy{.unshard_each_use = true, .prefetch = 2, .receive_ahead = false}};

/// Proves the lists of 2 to 8 stages on 2 to 4 replicas with each rank relieved, for every schedule; of the further choices every `stride`-th. Returns
/// the number of proven worlds.
int prove_each_relieved_rank(int stride) {
  int proven = 0, choice = 0;
  for (const ScheduleKind kind : kScheduleKinds)
    for (int pipeline = 2; pipeline <= 8; ++pipeline)
      for (int data = 2; data <= 4; ++data)
        for (int relieved_data = 0; relieved_data < data; ++relieved_data)
          for (int relieved = 0; relieved < pipeline; ++relieved)
            for (size_t further = 0; further < 4 * 4 * 3; ++further) {
              if (choice++ % stride != 0) continue;
              const LoweringPolicy& policy = kPolicies[further % 4];
              const int m = pipeline + std::array{0, 1, 3, 5}[further / 4 % 4], from = std::array{0, m / 2, m - 1}[further / 16];
              const int v = default_virtual_stages(kind);
              const bool tied = choice % 2 == 0, fused = choice % 3 == 0;
              const std::vector<StageUnits> units = toy_units(pipeline * v, 1 + choice % 2, tied, ends_meet(kind, pipeline), fused);
              const MeshShape mesh{pipeline, data % 2 == 0 ? 2 : 1, data % 2 == 0 ? data / 2 : data, 1 + choice % 5 / 4};
              INFO(name_of(kind) << ", " << pipeline << " stages, " << data << " replicas, " << m << " micro-batches from " << from << ", relieved "
                                 << relieved_data << "/" << relieved << ", choice " << choice);
              check_proven(RoutedWorld(mesh, make_schedule(kind, pipeline, v, m), units, policy, m, from, {{relieved_data, relieved}}));
              ++proven;
            }
  return proven;
}

}  // namespace

TEST_CASE("reroute: the exact lists of two pipelines of two stages, with the last stage of the second relieved") {
  const RoutedWorld world({2, 1, 2, 1}, one_forward_one_backward(2, 2), std::vector<StageUnits>(2, StageUnits{{{0}}, 1}), {}, 2, 1, {{1, 1}});
  CHECK(to_string(world.lists[0][0]) == to_string(world.undisturbed[0]));
  // Number 2 is micro-batch 1 of the second pipeline.
  CHECK_THAT(to_string(world.lists[0][1]),
             Catch::Contains("1UNSHARD0 1F0.0 1B0.0 1SEND_B0 1F1.0 1F2.0 1B1.0 1SEND_B1 1B2.0 1SEND_B2@1/1 1REDUCE_GRADS0"));
  CHECK_THAT(to_string(world.lists[0][1]), Catch::StartsWith("1RECV_F0 1RECV_F1 1RECV_F2@1/1 "));
  CHECK_THAT(to_string(world.lists[1][0]),
             Catch::StartsWith("0UNSHARD0 0F0.0 0SEND_F0 0F1.0 0SEND_F1@0/2 0RECV_B0 0B0.0 0RECV_B1@0/2 0B1.0 0REDUCE_GRADS0"));
  CHECK_THAT(to_string(world.lists[1][1]), Catch::StartsWith("1RECV_F0 1UNSHARD0 1F0.0 1B0.0 1SEND_B0 1REDUCE_GRADS0"));
  check_proven(world);
}

TEST_CASE("reroute: lists are proven for 2 to 8 stages, 2 to 4 replicas, each relieved rank and every schedule") {
  CHECK(prove_each_relieved_rank(37) == 2452);
}

TEST_CASE("reroute: all further choices of each relieved rank are proven", "[slow]") { CHECK(prove_each_relieved_rank(1) == 90720); }

TEST_CASE("reroute: lists are proven with several relieved ranks, also where pipelines help each other") {
  std::mt19937_64 random(20240514);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  // Neighbouring stages of two pipelines: each helps the other, so transfers in the order of the own pipeline first would deadlock.
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B})
    check_proven(RoutedWorld({2, 1, 2, 1}, make_schedule(kind, 2, 1, 4), toy_units(2, 1, false), {}, 4, 0, {{0, 0}, {1, 1}}));
  for (int trial = 0; trial < 400; ++trial) {
    const ScheduleKind kind = kScheduleKinds[static_cast<size_t>(below(std::size(kScheduleKinds)))];
    const int pipeline = 2 + below(4), data = 2 + below(4), m = pipeline + below(5), v = default_virtual_stages(kind);
    std::vector<PipelinePlace> relieved;
    for (int p = 0; p < pipeline; ++p) {
      const int keeps = below(static_cast<size_t>(data));
      for (int d = 0; d < data; ++d)
        if (d != keeps && below(3) == 0) relieved.push_back({d, p});
    }
    const std::vector<StageUnits> units = toy_units(pipeline * v, 1 + below(2), below(2) == 0, ends_meet(kind, pipeline), below(2) == 0);
    const MeshShape mesh{pipeline, 1, data, 1 + below(2)};
    const RoutedWorld world(mesh, make_schedule(kind, pipeline, v, m), units, kPolicies[static_cast<size_t>(trial % 4)], m,
                            below(static_cast<size_t>(m)), relieved);
    INFO("trial " << trial << ", " << name_of(kind));
    check_proven(world);
    for (int p = 0; p < pipeline; ++p) {  // evenly over those that are left
      std::vector<size_t> added;
      for (int d = 0; d < data; ++d)
        if (!world.rerouting.relieves(d, p)) added.push_back(world.rerouting.added[static_cast<size_t>(d)][static_cast<size_t>(p)].size());
      CHECK(std::ranges::max(added) - std::ranges::min(added) <= 1);
    }
  }
}

TEST_CASE("reroute: evaluations are rerouted too") {
  for (int pipeline = 2; pipeline <= 4; ++pipeline)
    for (int relieved = 0; relieved < pipeline; ++relieved)
      for (const LoweringPolicy& policy : kPolicies)
        check_proven(RoutedWorld({pipeline, 1, 3, 1}, forward_only(test::one_stage_each(pipeline), 5), toy_units(pipeline, 2, true), policy, 5, 0,
                                 {{1, relieved}}),
                     false);
}

TEST_CASE("reroute: every rank of a stage keeps the collectives of its list, and without a relieved rank nothing changes") {
  for (const LoweringPolicy& policy : kPolicies) {
    const RoutedWorld world({3, 1, 3, 1}, one_forward_one_backward(3, 6), toy_units(3, 2, true), policy, 6, 0, {{2, 0}, {0, 1}});
    for (const ActionLists& pipeline : world.lists)
      for (size_t rank = 0; rank < pipeline.size(); ++rank) CHECK(collectives_of(pipeline[rank]) == collectives_of(world.undisturbed[rank]));
    const RoutedWorld none({3, 1, 3, 1}, one_forward_one_backward(3, 6), toy_units(3, 2, true), policy, 6, 0, {});
    for (const ActionLists& pipeline : none.lists)
      for (size_t rank = 0; rank < pipeline.size(); ++rank) CHECK(to_string(pipeline[rank]) == to_string(world.undisturbed[rank]));
  }
}

TEST_CASE("reroute: a relieved rank begins no micro-batch from the given one on, and ends those that it has begun") {
  for (const int from : {0, 1, 3, 5}) {
    const RoutedWorld world({4, 1, 3, 1}, one_forward_one_backward(4, 6), toy_units(4, 2, true), {}, 6, from, {{1, 2}});
    for (const ActionType type : {ActionType::kForward, ActionType::kBackward}) {
      CHECK(count_in_flight(world.lists[1][2], type, 2) == from);
      CHECK(count_in_flight(world.lists[0][2], type, 2) == 6 + (6 - from + 1) / 2);
      CHECK(count_in_flight(world.lists[2][2], type, 2) == 6 + (6 - from) / 2);
      CHECK(count_in_flight(world.lists[1][1], type, 1) == 6);
    }
  }
}

TEST_CASE("reroute: a helper holds at most one micro-batch more for each that it would hold, and with more helpers fewer") {
  for (const ScheduleKind kind : kScheduleKinds)
    for (int pipeline = 2; pipeline <= 5; ++pipeline)
      for (int data = 2; data <= 4; ++data)
        for (int relieved = 0; relieved < pipeline; ++relieved) {
          const int v = default_virtual_stages(kind), m = 4 * pipeline;
          const RoutedWorld world({pipeline, 1, data, 1}, make_schedule(kind, pipeline, v, m),
                                  toy_units(pipeline * v, 2, false, ends_meet(kind, pipeline)), {}, m, 0, {{data - 1, relieved}});
          for (int d = 0; d < data; ++d)
            for (int p = 0; p < pipeline; ++p) {
              INFO(name_of(kind) << " " << pipeline << " x " << data << ", relieved " << relieved << ", rank " << d << "/" << p);
              const int before = max_in_flight(world.undisturbed[static_cast<size_t>(p)]);
              const int now = max_in_flight(world.lists[static_cast<size_t>(d)][static_cast<size_t>(p)]);
              if (p != relieved) {
                CHECK(now == before);
              } else if (d == data - 1) {
                CHECK(now == 0);
              } else {
                CHECK(now > before);
                CHECK(now <= before + (before + data - 2) / (data - 1) + v);  // + v: the window need not begin with a micro-batch of its own
              }
            }
        }
}

TEST_CASE("reroute: the proof finds lists that lose, repeat or mix up a micro-batch, and a deadlock") {
  const RoutedWorld sound({3, 1, 3, 1}, one_forward_one_backward(3, 6), toy_units(3, 1, false), {}, 6, 2, {{1, 1}});
  const auto finds = [&](const std::function<void(RoutedWorld&)>& break_it, const std::string& text) {
    RoutedWorld world = sound;
    break_it(world);
    std::string all;
    for (const std::string& violation : world.validated()) all += violation + "\n";
    CHECK_THAT(all, Catch::Contains(text));
  };
  const auto find = [](ActionList& list, const std::string& name) {
    const auto found = std::ranges::find_if(list, [&](const Action& action) { return to_string(action) == name; });
    REQUIRE(found != list.end());
    return found;
  };
  CHECK(sound.validated().empty());
  // Helper 0 computes micro-batches 2 and 4 of pipeline 1 as numbers 6 and 7, helper 2 the others.
  finds([&](RoutedWorld& world) { std::erase_if(world.lists[0][1], [](const Action& a) { return is_compute(a.type) && a.microbatch == 6; }); },
        "1F2.0 of data rank 1 is computed 0 times");
  finds([&](RoutedWorld& world) { std::erase_if(world.lists[0][1], [](const Action& a) { return is_compute(a.type) && a.microbatch == 6; }); },
        "stage 1 does not compute the forward of micro-batch 6");
  finds([&](RoutedWorld& world) { world.lists[1] = reroute(world.undisturbed, make_rerouting(3, 3, 6, 6, {}))[1]; },
        "1F2.0 of data rank 1 is computed 2 times");
  finds([&](RoutedWorld& world) { world.lists[1] = reroute(world.undisturbed, make_rerouting(3, 3, 6, 6, {}))[1]; },
        "computes or moves, although other ranks do, micro-batch 2");
  finds(
      [&](RoutedWorld& world) {
        find(world.lists[1][0], "0SEND_F2@0/6")->peer_microbatch = 7;
        find(world.lists[1][0], "0SEND_F4@0/7")->peer_microbatch = 6;
      },
      "0SEND_F2@0/7 joins micro-batch 2 of data rank 1 with micro-batch 4 of data rank 1");
  finds(
      [&](RoutedWorld& world) {
        find(world.lists[1][0], "0SEND_F2@0/6")->peer_microbatch = 7;
        find(world.lists[1][0], "0SEND_F4@0/7")->peer_microbatch = 6;
      },
      "messages do not match");
  finds([&](RoutedWorld& world) { find(world.lists[0][1], "1RECV_F6@1/2")->peer_microbatch = 3; }, "messages do not match");
  finds([&](RoutedWorld& world) { find(world.lists[1][0], "0SEND_F2@0/6")->peer_microbatch = 7; }, "messages do not match");
  finds([&](RoutedWorld& world) { find(world.lists[0][1], "1SEND_B6@1/2")->peer_microbatch = 3; }, "messages do not match");
  finds([&](RoutedWorld& world) { find(world.lists[1][0], "0RECV_B2@0/6")->peer_microbatch = 7; }, "messages do not match");
  finds([&](RoutedWorld& world) { find(world.lists[0][1], "1RECV_F6@1/2")->peer = 2; }, "deadlock");
  finds([&](RoutedWorld& world) { find(world.lists[0][1], "1RECV_F6@1/2")->peer = 9; }, "no rank computes the stage at the other end");
  finds([&](RoutedWorld& world) { std::erase_if(world.lists[1][1], [](const Action& a) { return a.type == ActionType::kReduceGrads; }); },
        "is never reduced");
  finds(
      [&](RoutedWorld& world) {
        ActionList& list = world.lists[0][1];
        std::iter_swap(find(list, "1F6.0"), find(list, "1B6.0"));
      },
      "1B6.0 runs before");
  CHECK_THROWS_WITH(make_rerouting(2, 2, 4, 0, {{0, 1}, {1, 1}}), Catch::Contains("no data rank computes pipeline rank 1"));
  CHECK_THROWS_WITH(make_rerouting(2, 2, 4, 0, {{0, 1}, {0, 1}}), Catch::Contains("named twice"));
  CHECK_THROWS_WITH(make_rerouting(2, 2, 4, 0, {{2, 1}}), Catch::Contains("outside the mesh"));
}

namespace {

/// Seconds of a step with F = I = W = 1 and free transfers.
double seconds_of(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<StageUnits>& units) {
  WorldCosts costs;
  costs.seconds = [](const Action& action) { return action.type == ActionType::kBackward ? 2.0 : is_compute(action.type) ? 1.0 : 0.0; };
  costs.collective = [](const Action&) { return 0.0; };
  return simulate_world(lists, mesh, units, costs).step_seconds;
}

}  // namespace

TEST_CASE("reroute: a step takes little more than the work of a helper, and no more than with one replica fewer") {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B, ScheduleKind::kZbH1})
    for (int pipeline = 2; pipeline <= 6; ++pipeline)
      for (int data = 2; data <= 4; ++data)
        for (int relieved = 0; relieved < pipeline; ++relieved) {
          const int m = 4 * (data - 1) * pipeline, fewer = m * data / (data - 1);
          const std::vector<StageUnits> units(static_cast<size_t>(pipeline), StageUnits{{{0}}, 1});
          const MeshShape mesh{pipeline, 1, data, 1}, less{pipeline, 1, data - 1, 1};
          const RoutedWorld world(mesh, make_schedule(kind, pipeline, 1, m), units, {}, m, 0, {{0, relieved}});
          const ActionLists dropped = lower(make_schedule(kind, pipeline, 1, fewer), units, {});
          const double undisturbed = seconds_of(lists_of_ranks(world.undisturbed, mesh), mesh, units);
          const double rerouted = seconds_of(lists_of_ranks(world.lists, mesh), mesh, units);
          const double with_fewer = seconds_of(lists_of_ranks(dropped, less), less, units);
          INFO(name_of(kind) << " " << pipeline << " stages, " << data << " replicas, relieved " << relieved << ": " << undisturbed << ", rerouted "
                             << rerouted << ", one replica fewer " << with_fewer);
          CHECK(rerouted > undisturbed);
          CHECK(rerouted >= 3 * fewer);
          CHECK(rerouted <= with_fewer + 1);  // + 1: on the last stage, which has no bubble, a micro-batch of another pipeline may come first
          if (kind == ScheduleKind::k1F1B && relieved == 0) CHECK(rerouted <= 3 * fewer + 2 * pipeline);
        }
}
