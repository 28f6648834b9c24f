#include "parallel/pipeline/world.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "kernels/core/check.h"
#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

const LoweringPolicy kOnce;  ///< parameters gathered and gradients reduced once per step
const LoweringPolicy kEachUse{.unshard_each_use = true, .reduce_each_microbatch = true};

/// A multiple of 1/4 between 1/4 and 2 that varies with the action. Ignores the group, which only lowered lists have.
double some_seconds(const Action& action, int salt) {
  if (ends_step(action.type)) return 0;
  const int which = is_compute(action.type) ? action.part : action.unit;
  const int all = static_cast<int>(action.type) * 7919 + action.stage * 104729 + (action.microbatch + 1) * 1299709 + (which + 1) * 15485863 + salt;
  return (1 + (all / 3 % 8 + 8) % 8) * 0.25;
}
double random_seconds(const Action& action) { return some_seconds(action, 1); }
double free_of_charge(const Action&) { return 0; }

/// F = 1 s and B = 2 s for each part; everything else takes no time.
double equal_seconds(const Action& action) { return action.type == ActionType::kForward ? 1 : action.type == ActionType::kBackward ? 2 : 0; }
std::function<double(const Action&)> only(ActionType type, double seconds) {
  return [=](const Action& action) { return action.type == type ? seconds : 0; };
}

double wait(const RankTimes& rank, WaitCause cause) { return rank.waits[static_cast<size_t>(cause)]; }
double sum(const RankTimes& rank) { return std::accumulate(std::begin(rank.waits), std::end(rank.waits) - 1, rank.compute + rank.held); }

/// A lowered schedule on a mesh: the inputs of simulate_world().
struct World {
  MeshShape mesh;
  std::vector<StageUnits> units;
  ActionLists plan;
  std::map<int, ActionList> own = {};  ///< lists of ranks that differ

  std::vector<const ActionList*> lists() const {
    std::vector<const ActionList*> all = lists_of_ranks(plan, mesh);
    for (const auto& [rank, list] : own) all[static_cast<size_t>(rank)] = &list;
    return all;
  }
  WorldSimulation run(const WorldCosts& costs, const std::vector<int>& traced = {}) const {
    return simulate_world(lists(), mesh, units, costs, traced);
  }
  /// The same lists on a single pipeline.
  World alone() const { return {{mesh.pipeline, 1, 1, 1}, units, plan}; }
  std::vector<std::string> problems() const {
    const std::vector<const ActionList*> all = lists();
    return run_rendezvous(all, mesh, stage_ranks(all, mesh, units.size()));
  }
  ActionList& list_of(int rank) { return own.try_emplace(rank, plan[static_cast<size_t>(coordinate_of(mesh, rank).pipeline)]).first->second; }
};

World world(MeshShape mesh, ScheduleKind kind, int virtual_stages, int microbatches, int blocks, const LoweringPolicy& policy, bool tied = false) {
  const std::vector<StageUnits> units = toy_units(mesh.pipeline * virtual_stages, blocks, tied, ends_meet(kind, mesh.pipeline), !tied);
  return {mesh, units, lower(make_schedule(kind, mesh.pipeline, virtual_stages, microbatches), units, policy)};
}

/// The 126 blocks, embedding and head of a 405B model as 128 parts on 16 pipeline ranks, on 16,384 ranks in total.
World large_world(bool interleaved, const LoweringPolicy& policy, int microbatches) {
  constexpr int kRanks = 16, kParts = 128;
  const int stages = interleaved ? 2 * kRanks : kRanks, each = kParts / stages;
  std::vector<StageUnits> units(static_cast<size_t>(stages));
  for (StageUnits& stage : units)
    for (; stage.units < each; ++stage.units) stage.units_of_part.push_back({stage.units});
  units.back().fused_part = each - 1;
  const ScheduleKind kind = interleaved ? ScheduleKind::kInterleaved1F1B : ScheduleKind::k1F1B;
  return {{kRanks, 1, 128, 8}, units, lower(make_schedule(kind, kRanks, stages / kRanks, microbatches), units, policy)};
}

const TimelineEvent& event_of(const Timeline& timeline, const std::string& name) {
  for (const TimelineEvent& event : timeline)
    if (to_string(event.action) == name) return event;
  throw InternalError("no event " + name);
}

size_t index_of(const ActionList& list, const std::string& name, size_t from = 0) {
  while (from < list.size() && to_string(list[from]) != name) ++from;
  REQUIRE(from < list.size());
  return from;
}

void check_contains(const std::vector<std::string>& problems, const std::string& text) {
  std::string all;
  for (const std::string& problem : problems) all += problem + "\n";
  CHECK_THAT(all, Catch::Contains(text));
}

}  // namespace

TEST_CASE("a swapped collective on one of 16,384 ranks is found and the rank is named") {
  World large = large_world(true, kEachUse, 16);
  const int wrong = rank_of(large.mesh, {9, 0, 77, 5});
  ActionList& list = large.list_of(wrong);
  const size_t first = index_of(list, "9UNSHARD1"), second = index_of(list, "9UNSHARD2", first);
  std::swap(list[first], list[second]);
  const std::vector<std::string> problems = large.problems();
  check_contains(problems, concat("collectives over shard in different order: rank ", wrong, " is at 9UNSHARD2, rank ",
                                  rank_of(large.mesh, {9, 0, 0, 5}), " and 126 more are at 9UNSHARD1"));
  check_contains(problems, concat("rank ", wrong, " waits at 9UNSHARD2 for the shard group of rank "));
  CHECK(problems.size() == 2);
  for (const std::string& problem : problems) CHECK(problem.size() < 2000);
  CHECK_THROWS_WITH(large.run({equal_seconds, free_of_charge}), Catch::Contains(concat("rank ", wrong, " is at 9UNSHARD2")));
}

TEST_CASE("a late send on one of 16,384 ranks is found and the ranks that wait for each other are named") {
  World large = large_world(false, kOnce, 16);
  const int wrong = rank_of(large.mesh, {9, 0, 77, 5});
  ActionList& list = large.list_of(wrong);
  for (Action& action : list) action.group = -1;
  // The rank computes the backward of micro-batch 0 before it sends a forward that stage 10 needs first.
  const size_t backward = index_of(list, "9RECV_B0");
  size_t send = backward;
  while (list[--send].type != ActionType::kSendForward) {
  }
  const Action late = list[send];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(send));
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(backward), late);
  const std::vector<std::string> problems = large.problems();
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::StartsWith(concat("deadlock: rank ", wrong, " waits at 9RECV_B0 from rank ", wrong + 1024)));
  CHECK_THAT(problems[0], Catch::Contains(concat("; rank ", wrong + 1024, " waits at ")));
  CHECK_THAT(problems[0], Catch::Contains(" more ranks wait"));
  CHECK(problems[0].size() < 2000);
}

/// One micro-batch of three parts, F = 1 s and B = 2 s. REDUCE_GRADS of unit 2 takes from 5 to 15 s, and the gather of unit 0 is queued behind it. The
/// backward of part 1 begins at 5 s, unless its tensor collectives wait for the gather: then at 15 s, and all that follows is 2 s later.
TEST_CASE("NCCL's order of operations: a gather behind a reduction delays the backward of a tensor group") {
  const World one = world({1, 1, 2, 2}, ScheduleKind::k1F1B, 1, 1, 1, kEachUse);
  WorldCosts costs{equal_seconds, only(ActionType::kReduceGrads, 10)};
  costs.tensor = [](const Action& action) { return is_compute(action.type) ? 0.5 : 0; };
  CHECK(one.run(costs).step_seconds == 35);
  costs.in_launch_order = true;
  CHECK(one.run(costs).step_seconds == 37);
  costs.tensor = free_of_charge;
  CHECK(one.run(costs).step_seconds == 35);
  const World apart = world({1, 1, 2, 2}, ScheduleKind::k1F1B, 1, 1, 1, kOnce);  // no gather follows a reduction
  costs.tensor = [](const Action& action) { return is_compute(action.type) ? 0.5 : 0; };
  const double ordered = apart.run(costs).step_seconds;
  costs.in_launch_order = false;
  CHECK(apart.run(costs).step_seconds == ordered);
}

TEST_CASE("NCCL's order of operations: posted receives hold back the gathers of a later stage") {
  const World two = world({2, 1, 2, 1}, ScheduleKind::k1F1B, 1, 4, 2, kOnce);
  WorldCosts costs{equal_seconds, only(ActionType::kUnshard, 1)};
  const double free = two.run(costs).step_seconds;
  costs.in_launch_order = true;
  CHECK(two.run(costs).step_seconds > free);
  costs.collective = free_of_charge;
  const double without_gathers = two.run(costs).step_seconds;
  costs.in_launch_order = false;
  CHECK(two.run(costs).step_seconds == without_gathers);
}

/// One rank of two islands is three times as slow. The other island does not wait for it: outer steps do not follow each step.
TEST_CASE("the end of a step in the simulated world: islands do not wait for each other, the ranks of an island do") {
  using enum ActionType;
  LoweringPolicy policy = kOnce;
  policy.end.actions = {kAggregate, kNoise, kNorm, kOuter};
  World two = world({.shard = 2, .islands = 2}, ScheduleKind::k1F1B, 1, 1, 1, policy);
  WorldCosts costs{equal_seconds, free_of_charge, {{0, 3.0}}};
  costs.seconds = [](const Action& action) { return action.type == kUpdate ? 0.5 : action.type == kNoise ? 0.25 : equal_seconds(action); };
  const WorldSimulation run = two.run(costs);
  // Three parts of 1 + 2 s, one of them alone on the slow rank; three units; the noise is added behind AGGREGATE.
  for (const size_t rank : {0, 1}) CHECK(run.ranks[rank].end == 27);
  // Rank 0 issues the gather of unit 2 after its first part, at 3 s. Rank 1 reads it at 2 s, and otherwise waits for the reductions.
  CHECK(wait(run.ranks[1], WaitCause::kGather) == 1);
  CHECK(wait(run.ranks[1], WaitCause::kReduce) == 17);
  for (const int rank : {2, 3}) {
    CHECK(run.ranks[static_cast<size_t>(rank)].end == 9);
    CHECK(wait(run.ranks[static_cast<size_t>(rank)], WaitCause::kLast) == 0);
  }
  for (const RankTimes& rank : run.ranks) {
    CHECK(rank.update == 0.25 + 3 * 0.5);
    CHECK(rank.held == 0);
    CHECK(sum(rank) == rank.end);
  }
  CHECK(run.step_seconds == 27 + 0.25 + 3 * 0.5);
}

TEST_CASE("a rank that finishes before its group is reported") {
  World large = large_world(false, kOnce, 16);
  const int wrong = rank_of(large.mesh, {9, 0, 77, 5});
  ActionList& list = large.list_of(wrong);
  while (list.back().type != ActionType::kReduceGrads) list.pop_back();
  const std::string lost = to_string(list.back());
  list.pop_back();
  const std::vector<std::string> problems = large.problems();
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::StartsWith("deadlock: rank ") && Catch::Contains(concat(" waits at ", lost)) &&
                              Catch::Contains(concat("; rank ", wrong, " has finished its list")));
}

TEST_CASE("the times of one pipeline equal those of the simulator, for any schedule and costs") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (const int p : {1, 2, 3, 4, 7}) {
      for (const int m : {1, 3, 8}) {
        for (const LoweringPolicy& policy : {kOnce, kEachUse, LoweringPolicy{.unshard_each_use = true, .prefetch = 3, .receive_ahead = false}}) {
          CAPTURE(name_of(kind), p, m, policy.unshard_each_use, policy.prefetch);
          const World one = world({p, 1, 1, 1}, kind, default_virtual_stages(kind), m, 2, policy);
          std::vector<int> all(static_cast<size_t>(p));
          std::iota(all.begin(), all.end(), 0);
          const WorldSimulation run = one.run({random_seconds, free_of_charge}, all);
          const Simulation expected = simulate(one.plan, random_seconds);
          size_t different = 0;
          for (int rank = 0; rank < p; ++rank) {
            const Timeline &got = run.timelines.at(rank), &want = expected.ranks[static_cast<size_t>(rank)];
            REQUIRE(got.size() == want.size());
            for (size_t i = 0; i < got.size(); ++i)
              different += !(got[i].action == want[i].action) || got[i].begin != want[i].begin || got[i].end != want[i].end;
          }
          CHECK(different == 0);
          CHECK(run.step_seconds == expected.barrier_seconds);
        }
      }
    }
  }
}

TEST_CASE("compute, collectives and waits sum to each rank's time") {
  for (const bool each_use : {false, true}) {
    const World all = world({4, 2, 3, 2}, ScheduleKind::k1F1B, 1, 6, 2, each_use ? kEachUse : kOnce, true);
    const WorldSimulation run = all.run({random_seconds, [](const Action& a) { return 2 * some_seconds(a, 5); }, {{5, 1.5}, {40, 3}}});
    std::vector<double> waited(kWaitCauses, 0);
    for (const RankTimes& rank : run.ranks) {
      CHECK(sum(rank) == Approx(rank.end));
      CHECK(rank.end + wait(rank, WaitCause::kLast) == Approx(run.step_seconds));
      for (size_t cause = 0; cause < kWaitCauses; ++cause) waited[cause] += rank.waits[cause];
    }
    for (size_t cause = 0; cause < kWaitCauses; ++cause) {
      CAPTURE(name_of(static_cast<WaitCause>(cause)), each_use);
      CHECK(waited[cause] > 0);
    }
  }
}

TEST_CASE("data ranks with different numbers of micro-batches meet in the same collectives, and cannot deadlock") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (const int p : {1, 2, 3}) {
      for (const LoweringPolicy& policy : {kOnce, kEachUse, LoweringPolicy{.unshard_each_use = true, .prefetch = 3, .receive_ahead = false}}) {
        CAPTURE(name_of(kind), p, policy.unshard_each_use, policy.receive_ahead);
        World all = world({p, 2, 2, 2}, kind, default_virtual_stages(kind), 7, 2, policy, true);
        for (int rank = 0; rank < all.mesh.world(); ++rank) {
          const MeshCoordinate at = coordinate_of(all.mesh, rank);
          all.own[rank] = without_first(all.plan[static_cast<size_t>(at.pipeline)], 2 * (2 * at.replicate + at.shard));
        }
        CHECK(all.problems().empty());
        CHECK(all.run({random_seconds, only(ActionType::kReduceGrads, 0.5)}).step_seconds > 0);
      }
    }
  }
}

TEST_CASE("a straggler with fewer micro-batches delays a step less") {
  for (const LoweringPolicy& policy : {kOnce, kEachUse}) {
    World all = world({1, 1, 4, 1}, ScheduleKind::k1F1B, 1, 7, 2, policy);
    const World even = world({1, 1, 4, 1}, ScheduleKind::k1F1B, 1, 6, 2, policy);
    all.own[1] = without_first(all.plan[0], 4);
    const WorldCosts costs{equal_seconds, free_of_charge, {{1, 2}}};
    CAPTURE(policy.unshard_each_use);
    // Where ranks meet in every micro-batch, each takes as long as the slowest rank that computes it: 3 x 2 + 4 instead of 7 micro-batches. A gather is
    // started a part ahead.
    CHECK(all.run(costs).step_seconds / even.run(costs).step_seconds == Approx((policy.unshard_each_use ? 10 : 7) / 12.0).margin(0.03));
  }
}

TEST_CASE("a straggler in one data replica delays the others only through their shared collective") {
  // All gathers are issued before any compute, and no stage has enough units to wait for a reduction before it has sent its last gradient.
  const World all = world({3, 1, 4, 1}, ScheduleKind::k1F1B, 1, 5, 1, {.prefetch = 8});
  const WorldCosts even{equal_seconds, only(ActionType::kReduceGrads, 0.5)};
  WorldCosts uneven = even;
  const int slow = rank_of(all.mesh, {1, 0, 2, 0}), other = rank_of(all.mesh, {1, 0, 0, 0}), behind = rank_of(all.mesh, {2, 0, 2, 0});
  uneven.slowdown[slow] = 2;
  const WorldSimulation before = all.run(even, {other, behind}), after = all.run(uneven, {slow, other, behind});
  for (size_t i = 0; i < before.timelines.at(other).size(); ++i) {
    const TimelineEvent &then = before.timelines.at(other)[i], &now = after.timelines.at(other)[i];
    if (!is_compute(then.action.type)) continue;
    CAPTURE(to_string(then.action));
    CHECK(now.begin == then.begin);
    CHECK(now.end == then.end);
  }
  const auto of = [](const WorldSimulation& run, int rank) { return run.ranks[static_cast<size_t>(rank)]; };
  CHECK(of(after, slow).compute == 2 * of(before, slow).compute);
  CHECK(of(after, other).compute == of(before, other).compute);
  CHECK(of(after, other).end == of(after, slow).end);  // they end with the same reduction
  CHECK(wait(of(after, other), WaitCause::kReduce) - wait(of(before, other), WaitCause::kReduce) == of(after, other).end - of(before, other).end);
  CHECK(of(after, other).end > of(before, other).end);
  CHECK(wait(of(after, other), WaitCause::kStage) == wait(of(before, other), WaitCause::kStage));
  CHECK(wait(of(after, behind), WaitCause::kStage) > wait(of(before, behind), WaitCause::kStage));  // the straggler's own pipeline waits for it
  // If parameters are gathered for each use, replicas meet at every unit, so the other replica's compute is late too.
  const World often = world({3, 1, 4, 1}, ScheduleKind::k1F1B, 1, 5, 2, kEachUse);
  CHECK(wait(of(often.run(uneven), other), WaitCause::kGather) > wait(of(often.run(even), other), WaitCause::kGather));
}

TEST_CASE("replicas that share only the replica reduction end with the slowest") {
  const World all = world({1, 2, 1, 1}, ScheduleKind::kGPipe, 1, 4, 1, kOnce);  // three parts: F = 3 and B = 6 seconds a micro-batch
  const WorldSimulation run = all.run({equal_seconds, only(ActionType::kReduceReplicas, 0.25), {{1, 1.5}}});
  CHECK(run.ranks[0].compute == 36);
  CHECK(run.ranks[1].compute == 54);
  CHECK(run.ranks[1].end == 54.5);  // reductions of the last two units; the first overlaps the backward
  CHECK(run.ranks[0].end == 54.5);
  CHECK(wait(run.ranks[0], WaitCause::kReduce) == 18.5);
}

TEST_CASE("a tensor group runs at the speed of its slowest rank") {
  const World all = world({2, 1, 1, 4}, ScheduleKind::k1F1B, 1, 4, 2, kOnce);
  const WorldSimulation run = all.run({equal_seconds, free_of_charge, {{1, 3}, {2, 2}}}, {0});
  const WorldSimulation even = all.run({equal_seconds, free_of_charge, {{0, 3}, {1, 3}, {2, 3}, {3, 3}}}, {0});
  CHECK(run.step_seconds == even.step_seconds);
  for (size_t i = 0; i < run.timelines.at(0).size(); ++i) CHECK(run.timelines.at(0)[i].end == even.timelines.at(0)[i].end);
  for (const int rank : {0, 1, 2, 3}) {
    const RankTimes& times = run.ranks[static_cast<size_t>(rank)];
    CHECK(times.compute == (rank == 1 ? 3 : rank == 2 ? 2 : 1) * run.ranks[0].compute);
    CHECK(times.compute + wait(times, WaitCause::kTensor) == run.ranks[1].compute);
    CHECK(times.end == run.ranks[1].end);
  }
}

TEST_CASE("gathers run sequentially beside the compute, and only their reader waits") {
  const World all = world({1, 1, 2, 1}, ScheduleKind::kGPipe, 1, 1, 3, {.unshard_each_use = true});
  for (const double gather : {0.25, 1.0, 1.5}) {
    CAPTURE(gather);
    const WorldSimulation run = all.run({equal_seconds, only(ActionType::kUnshard, gather)}, {0});
    const Timeline& timeline = run.timelines.at(0);
    double stream = 0, clock = 0, issued = 0;  // a gather is issued when the previous part begins to wait
    for (int part = 0; part < 5; ++part) {
      stream = std::max(stream, issued) + gather;
      const TimelineEvent& forward = event_of(timeline, concat("0F0.", part));
      CHECK(event_of(timeline, concat("0UNSHARD", part)).end == stream);
      CHECK(forward.begin == std::max(clock, stream));
      issued = clock;
      clock = forward.end;
    }
  }
}

TEST_CASE("a stage's reductions are sequential: each waits for the previous one") {
  const World all = world({1, 1, 2, 1}, ScheduleKind::kGPipe, 1, 1, 2, kOnce);  // parts 0 to 3, the last one fused
  const WorldSimulation run = all.run({equal_seconds, only(ActionType::kReduceGrads, 3)}, {0});
  const Timeline& timeline = run.timelines.at(0);
  // F to 4; B of part 3 to 6, its reduction to 9; B of part 2 to 8, where the next reduction waits until 9, and so on.
  CHECK(event_of(timeline, "0B0.3").end == 6);
  CHECK(event_of(timeline, "0REDUCE_GRADS3").end == 9);
  CHECK(event_of(timeline, "0B0.2").end == 8);
  CHECK(event_of(timeline, "0REDUCE_GRADS2").begin == 9);
  CHECK(event_of(timeline, "0B0.0").end == 14);
  CHECK(run.ranks[0].end == 18);
  CHECK(wait(run.ranks[0], WaitCause::kReduce) == 6);
}

TEST_CASE("16,384 ranks are proven deadlock-free and simulated, each with the times of a single pipeline if all are equal") {
  for (const bool interleaved : {false, true}) {
    for (const LoweringPolicy& policy : {kOnce, kEachUse}) {
      const World large = large_world(interleaved, policy, 16);
      const WorldCosts costs{random_seconds, [](const Action& a) { return some_seconds(a, 3); }};
      const auto start = std::chrono::steady_clock::now();
      const WorldSimulation run = large.run(costs, {16383});
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // takes about one second
      const WorldSimulation one = large.alone().run(costs, {15});
      REQUIRE(run.ranks.size() == 16384);
      CHECK(run.step_seconds == one.step_seconds);
      size_t different = 0;
      for (int rank = 0; rank < large.mesh.world(); ++rank) {
        const RankTimes &got = run.ranks[static_cast<size_t>(rank)], &want = one.ranks[static_cast<size_t>(coordinate_of(large.mesh, rank).pipeline)];
        different += got.end != want.end || got.compute != want.compute || !std::equal(std::begin(got.waits), std::end(got.waits), want.waits);
      }
      CHECK(different == 0);
      CHECK(run.timelines.at(16383).back().end == one.timelines.at(15).back().end);
      WorldCosts uneven = costs;
      uneven.slowdown[7777] = 3;  // slows compute only; collectives take most of the time
      if (interleaved && policy.unshard_each_use) CHECK(large.run(uneven).step_seconds > 1.1 * run.step_seconds);
    }
  }
  rusage usage{};
  REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
  CHECK(usage.ru_maxrss < 4000000);  // kilobytes, whole process
}

TEST_CASE("invalid inputs of a simulation are named") {
  World one = world({2, 1, 2, 1}, ScheduleKind::k1F1B, 1, 2, 1, kOnce);
  const WorldCosts costs{equal_seconds, free_of_charge};
  CHECK_THROWS_WITH(one.run({equal_seconds, free_of_charge, {{4, 2}}}), Catch::Contains("rank 4 of 4"));
  CHECK_THROWS_WITH(one.run({equal_seconds, free_of_charge, {{0, 0}}}), Catch::Contains("rank 0 of 4"));
  CHECK_THROWS_WITH(one.run(costs, {-1}), Catch::Contains("rank -1 is outside a world of size 4"));
  CHECK_THROWS_WITH(lists_of_ranks(one.plan, {3, 1, 2, 1}), Catch::Contains("2 lists for 6 ranks"));
  one.list_of(3).push_back({ActionType::kForward, 0, 0, -1, 0});
  CHECK_THROWS_WITH(one.run(costs), Catch::Contains("0F0.0 on pipeline rank 1"));
  one.list_of(3).back() = {ActionType::kUnshard, 1, -1, 9};
  CHECK_THROWS_WITH(one.run(costs), Catch::Contains("1UNSHARD9 is out of range; parts or units of its stage: 2"));
}

}  // namespace trireme::test
