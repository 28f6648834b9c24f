#include "parallel/pipeline/validate.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::compute_list;
using test::ends_meet;
using test::one_stage_each;
using test::toy_units;

namespace {

using Violations = std::vector<std::string>;

const LoweringPolicy once;  ///< parameters gathered and gradients reduced once a step

/// Lists of two stages and four micro-batches on a mesh with shard 2 and tensor 2: one list for each of its eight ranks.
struct World {
  MeshShape mesh{2, 1, 2, 2};
  std::vector<StageUnits> units = toy_units(2, 2, true);
  std::vector<ActionList> lists;

  StepEnd end;

  explicit World(const LoweringPolicy& policy = {.unshard_each_use = true}, bool matrices = false) : end(policy.end) {
    for (StageUnits& stage : units) stage.has_matrix_updates = matrices;
    const ActionLists plan = lower(one_forward_one_backward(2, 4), units, policy);
    for (int rank = 0; rank < mesh.world(); ++rank) lists.push_back(plan[static_cast<size_t>(coordinate_of(mesh, rank).pipeline)]);
  }
  ActionList::iterator find(size_t rank, const std::string& name) {
    const auto found = std::find_if(lists[rank].begin(), lists[rank].end(), [&](const Action& a) { return to_string(a) == name; });
    REQUIRE(found != lists[rank].end());
    return found;
  }
  void move_before(size_t rank, const std::string& name, const std::string& target) {
    const Action action = *find(rank, name);
    lists[rank].erase(find(rank, name));
    lists[rank].insert(find(rank, target), action);
  }
  template <class Predicate>
  void erase_on_all(Predicate predicate) {
    for (ActionList& list : lists) std::erase_if(list, predicate);
  }
  Violations validated() const { return validate(lists, mesh, units, 4, true, end); }
};

void check_found(const Violations& violations, const std::string& text) {
  std::string all;
  for (const std::string& violation : violations) all += violation + "\n";
  CHECK_THAT(all, Catch::Contains(text));
}

}  // namespace

namespace {

/// Validates every kind and size, with every `stride`-th of 48 combinations: tied or not, head fused or not, gathers and reductions of both
/// lifetimes, three depths of prefetch. Returns the number of validated schedules.
int prove_all(int stride) {
  int schedules = 0, combination = 0;
  for (const ScheduleKind kind : kScheduleKinds) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int v = 1; v <= 4; ++v) {
        if (!allows_virtual_stages(kind, v)) continue;
        for (int m = 1; m <= 20; ++m) {
          const ActionLists compute = make_schedule(kind, ranks, v, m);
          for (int choice = 0; choice < 48; ++choice) {
            if (++combination % stride != 0) continue;
            const bool tied = choice % 2 == 1, fused = choice / 2 % 2 == 1;
            const int policy = choice / 4;
            const std::vector<StageUnits> units = toy_units(ranks * v, 1 + m % 2, tied, ends_meet(kind, ranks), fused);
            const LoweringPolicy lowering{policy % 2 == 1, policy / 2 % 2 == 1, policy / 4, (ranks + v + m) % 2 == 0};
            const MeshShape mesh{ranks, policy % 2 == 1 ? 2 : 1, 2, policy % 2 == 1 ? 1 : 2};
            const Violations violations = validate(lower(compute, units, lowering), mesh, units, m, true);
            ++schedules;
            if (violations.empty()) continue;
            FAIL(name_of(kind) << ", ranks " << ranks << ", virtual stages " << v << ", micro-batches " << m << ", choice " << choice << ": "
                               << violations[0]);
          }
          const std::vector<StageUnits> units = toy_units(ranks * v, 1, true, ends_meet(kind, ranks));
          if (m % stride == 0)
            CHECK(validate(lower(forward_only(stage_ranks(compute), m), units, {}), {ranks, 1, 2, 2}, units, m, false) == Violations{});
        }
      }
    }
  }
  return schedules;
}

}  // namespace

TEST_CASE("every generated schedule is proven: all kinds, 1..8 ranks, 1..4 virtual stages, 1..20 micro-batches") {
  CHECK(prove_all(29) == 8 * 20 * 9 * 48 / 29);
}

TEST_CASE("every generated schedule is proven under every policy", "[slow]") { CHECK(prove_all(1) == 8 * 20 * 9 * 48); }

TEST_CASE("split backwards and several stages on a rank are proven too") {
  const std::vector<StageUnits> two = toy_units(2, 2, true);
  const ActionLists split{compute_list(0, "F0 F1 I0 F2 I1 W0 I2 W1 W2"), compute_list(1, "F0 I0 F1 I1 W0 F2 I2 W1 W2")};
  // A V: stages 0 and 3 on rank 0, stages 1 and 2 on rank 1, so that stage 1 hands over to stage 2 on its own rank.
  ActionLists vee(2);
  for (const int stage : {0, 3}) std::ranges::copy(compute_list(stage, "F0 F1"), std::back_inserter(vee[0]));
  for (const int stage : {3, 0}) std::ranges::copy(compute_list(stage, "B0 B1"), std::back_inserter(vee[0]));
  for (const int stage : {1, 2}) std::ranges::copy(compute_list(stage, "F0 F1"), std::back_inserter(vee[1]));
  for (const int stage : {2, 1}) std::ranges::copy(compute_list(stage, "B0 B1"), std::back_inserter(vee[1]));
  // Looped: stages 0 and 2 on rank 0, stages 1 and 3 on rank 1.
  ActionLists looped(2);
  for (const int stage : {0, 1, 2, 3}) std::ranges::copy(compute_list(stage, "F0 F1"), std::back_inserter(looped[static_cast<size_t>(stage % 2)]));
  for (const int stage : {3, 2, 1, 0}) std::ranges::copy(compute_list(stage, "B0 B1"), std::back_inserter(looped[static_cast<size_t>(stage % 2)]));
  for (int policy = 0; policy < 12; ++policy) {
    const LoweringPolicy lowering{policy % 2 == 1, policy / 2 % 2 == 1, policy / 4};
    CHECK(validate(lower(split, two, lowering), {2, 1, 2, 2}, two, 3, true) == Violations{});
    const std::vector<StageUnits> four = toy_units(4, 1, false);
    CHECK(validate(lower(vee, four, lowering), {2, 1, 2, 2}, four, 2, true) == Violations{});
    CHECK(validate(lower(looped, four, lowering), {2, 2, 2, 1}, four, 2, true) == Violations{});
  }
}

TEST_CASE("two ranks that both send first deadlock, unless send and receive are issued together") {
  const std::vector<StageUnits> units(2, StageUnits{{{0}}, 1, -1});
  const ActionLists lists = lower(one_forward_one_backward(2, 3), units, {});
  // Stage 1 sends the gradient of micro-batch 0 before it receives micro-batch 1, which stage 0 sends before it receives that gradient.
  for (const bool together : {true, false}) {
    ActionLists crossed = lists;
    for (ActionList& list : crossed)
      for (Action& action : list)
        if (is_transfer(action.type) && !together) action.group = -1;
    ActionList& stage1 = crossed[1];
    const auto find = [&](const std::string& name) { return std::ranges::find(stage1, name, [](const Action& a) { return to_string(a); }); };
    REQUIRE(find("1RECV_F1") < find("1SEND_B0"));
    Action moved = *find("1RECV_F1");
    stage1.erase(find("1RECV_F1"));
    const auto send = find("1SEND_B0");
    moved.group = send->group;
    stage1.insert(std::next(send), moved);
    const Violations violations = validate(crossed, {2, 1, 1, 1}, units, 3, true);
    if (together) {
      CHECK(violations == Violations{});
    } else {
      REQUIRE(violations.size() == 1);
      CHECK(violations[0] == "deadlock: rank 0 waits at 0SEND_F1 to rank 1; rank 1 waits at 1SEND_B0 to rank 0");
    }
  }
}

TEST_CASE("a gather that one shard rank leaves out is reported for that rank and for its group") {
  World world;
  world.lists[2].erase(world.find(2, "0UNSHARD1"));
  const Violations violations = world.validated();
  check_found(violations, "rank 2: 0F0.1 runs before unit 1 is gathered");
  check_found(violations, "collectives over");
  check_found(violations, "deadlock: ");
}

TEST_CASE("collectives in a different order on one rank are reported") {
  World reduced;
  std::iter_swap(reduced.find(0, "0REDUCE_GRADS2"), reduced.find(0, "0REDUCE_GRADS1"));
  check_found(reduced.validated(), "collectives over shard in different order: rank ");

  World world;
  std::iter_swap(world.find(3, "0UNSHARD0"), world.find(3, "0UNSHARD1"));
  const Violations violations = world.validated();
  check_found(violations, "collectives over shard in different order: rank 1 is at 0UNSHARD0, rank 3 is at 0UNSHARD1");
  check_found(violations,
              "deadlock: rank 1 waits at 0UNSHARD0 for the shard group of rank 1, which rank 3 has not joined; rank 3 waits at 0UNSHARD1");
}

TEST_CASE("parts in a different order on one rank of a tensor group are reported") {
  World world(once);
  std::iter_swap(world.find(1, "0F1.0"), world.find(1, "0F1.1"));
  const Violations violations = world.validated();
  check_found(violations, "rank 1: 0F1.1 runs twice or out of order");
  check_found(violations, "collectives over tensor in different order: rank 0 is at 0F1.0, rank 1 is at 0F1.1");
}

TEST_CASE("a missing or duplicate micro-batch is reported") {
  World missing;
  missing.erase_on_all([](const Action& a) { return a.microbatch == 3; });
  const Violations violations = missing.validated();
  check_found(violations, "rank 0: stage 0 does not compute the forward of micro-batch 3");
  check_found(violations, "rank 7: stage 1 does not compute the weight gradients of micro-batch 3");
  check_found(violations, "rank 0: stage 0 never sends the output of micro-batch 3");
  check_found(violations, "rank 7: stage 1 never sends the input gradient of micro-batch 3");

  World twice;
  for (size_t rank = 0; rank < 4; ++rank) twice.lists[rank].insert(twice.find(rank, "0F0.2"), *twice.find(rank, "0F0.2"));
  check_found(twice.validated(), "rank 3: 0F0.2 runs twice or out of order");
}

TEST_CASE("a stage that no rank computes is reported") {
  World world;
  for (size_t rank = 4; rank < 8; ++rank) world.lists[rank].clear();
  const Violations violations = world.validated();
  check_found(violations, "no rank computes stage 1");
  check_found(violations, "no rank computes the stage at the other end of 0SEND_F0");
}

TEST_CASE("weight gradients that are added after the reduction are reported") {
  World world(once);
  for (size_t rank = 0; rank < 4; ++rank) world.move_before(rank, "0REDUCE_GRADS2", "0B3.2");
  check_found(world.validated(), "rank 0: unit 2 of stage 0 is never reduced after the last gradient is added");

  World late(once);
  for (size_t rank = 0; rank < 4; ++rank) {
    late.move_before(rank, "0REDUCE_REPLICAS2", "0B3.2");
    late.move_before(rank, "0REDUCE_GRADS2", "0REDUCE_REPLICAS2");
  }
  check_found(late.validated(), "rank 0: 0B3.2 adds to the gradient of unit 2 after it was reduced over replicas");
}

TEST_CASE("reductions that are missing, duplicate or in the wrong order are reported") {
  for (const auto& [type, text] : {std::pair{ActionType::kReduceGrads, "unit 0 of stage 0 is never reduced after the last gradient is added"},
                                   std::pair{ActionType::kReduceReplicas, "unit 0 of stage 0 is never reduced over replicas"},
                                   std::pair{ActionType::kReduceTied, "unit 3 of stage 1 is never reduced over the tied embeddings"}}) {
    World world;
    world.erase_on_all([wanted = type](const Action& a) { return a.type == wanted; });
    check_found(world.validated(), text);
  }
  World one_end;
  for (size_t rank = 4; rank < 8; ++rank) std::erase_if(one_end.lists[rank], [](const Action& a) { return a.type == ActionType::kReduceTied; });
  check_found(one_end.validated(), "rank 0 waits at 0REDUCE_TIED0 for the embedding group of rank 0");

  World early;
  for (size_t rank = 0; rank < 4; ++rank) std::iter_swap(early.find(rank, "0REDUCE_TIED0"), early.find(rank, "0REDUCE_REPLICAS0"));
  check_found(early.validated(), "rank 0: 0REDUCE_TIED0 comes before the gradient is reduced over replicas");

  World twice;
  for (size_t rank = 0; rank < 4; ++rank) twice.lists[rank].push_back(*twice.find(rank, "0REDUCE_REPLICAS1"));
  check_found(twice.validated(), "rank 1: 0REDUCE_REPLICAS1 occurs twice");
}

TEST_CASE("frozen units are gathered, and neither reduced nor updated") {
  std::vector<StageUnits> units = toy_units(2, 2, true);  // 0: embedding and two blocks; 1: two blocks, the head, and a copy of the embedding
  units[0].frozen = {1};
  units[1].frozen = {0, 1, 2, 3};
  units[0].tied_unit = units[1].tied_unit = -1;
  for (const bool each_use : {false, true}) {
    const LoweringPolicy policy{.unshard_each_use = each_use, .reduce_each_microbatch = each_use};
    const ActionLists lists = lower(one_forward_one_backward(2, 3), units, policy);
    CHECK(validate(lists, {2, 2, 2, 1}, units, 3, true) == std::vector<std::string>{});
    const auto about = [&](size_t rank, ActionType type) {
      std::set<int> found;
      for (const Action& action : lists[rank])
        if (action.type == type) found.insert(action.unit);
      return found;
    };
    for (const ActionType type : {ActionType::kReduceGrads, ActionType::kReduceReplicas, ActionType::kWaitGrads, ActionType::kUpdate}) {
      INFO(name_of(type));
      CHECK(about(0, type) == std::set{0, 2});
      CHECK(about(1, type).empty());
    }
    CHECK(about(0, ActionType::kUnshard) == std::set{0, 1, 2});
    CHECK(about(1, ActionType::kUnshard) == std::set{0, 1, 2, 3});
    CHECK(about(1, ActionType::kNorm) == std::set{-1});  // its norm is 0, and the others wait for it
  }
  const ActionLists lists = lower(one_forward_one_backward(2, 3), units, {});
  for (const ActionType type : {ActionType::kReduceGrads, ActionType::kUpdate}) {
    ActionLists wrong = lists;
    wrong[0].insert(wrong[0].end() - (type == ActionType::kUpdate ? 0 : 5), {type, 0, -1, 1});
    const std::vector<std::string> found = validate(wrong, {2, 1, 1, 1}, units, 3, true);
    INFO(name_of(type));
    CHECK(std::ranges::find(found, concat("pipeline rank 0: 0", name_of(type), "1: the unit is frozen")) != found.end());
  }
}

TEST_CASE("updates of whole matrices that are missing, duplicate, too early or of a stage without any are reported") {
  CHECK(World(once, true).validated().empty());
  World missing(once, true);
  missing.erase_on_all([](const Action& action) { return action.type == ActionType::kOrthogonalize; });
  check_found(missing.validated(), "rank 0: 0UPDATE0 comes before the updates of the stage's matrices are computed");
  World twice(once, true), early(once, true), alone(once, true), unasked;
  for (size_t rank = 0; rank < 4; ++rank) {
    twice.lists[rank].insert(twice.find(rank, "0ORTHOGONALIZE"), *twice.find(rank, "0ORTHOGONALIZE"));
    early.move_before(rank, "0ORTHOGONALIZE", "NORM");
    unasked.lists[rank].insert(unasked.find(rank, "0UPDATE0"), Action{ActionType::kOrthogonalize, 0});
  }
  check_found(twice.validated(), "rank 0: 0ORTHOGONALIZE occurs twice");
  check_found(early.validated(), "rank 0: 0ORTHOGONALIZE comes before the norm");
  check_found(unasked.validated(), "rank 0: 0ORTHOGONALIZE: the stage has no updates of whole matrices");
  // A shard or tensor rank that does not take part leaves the others waiting.
  alone.lists[3].erase(alone.find(3, "0ORTHOGONALIZE"));
  check_found(alone.validated(), "rank 1 waits at 0ORTHOGONALIZE for the shard group of rank 1, which rank 3 has not joined");
}

TEST_CASE("waits, norm and updates that are missing, duplicate or too early are reported") {
  const auto is = [](ActionType type) { return [=](const Action& action) { return action.type == type; }; };
  const auto without = [&](ActionType type, const LoweringPolicy& policy = once) {
    World world(policy);
    world.erase_on_all(is(type));
    return world.validated();
  };
  check_found(without(ActionType::kWaitGrads), "0REDUCE_REPLICAS2 starts before the reduction in flight has been waited for");
  check_found(without(ActionType::kWaitGrads, {.reduce_each_microbatch = true}), "0B1.2 adds to the gradient of unit 2 while it is being reduced");
  check_found(without(ActionType::kSumPartial), "rank 0: NORM comes before the partial gradients of stage 0 are summed");
  check_found(without(ActionType::kNorm), "rank 0: NORM is missing");
  check_found(without(ActionType::kNorm), "rank 0: 0UPDATE0 comes before the norm");
  check_found(without(ActionType::kUpdate), "rank 0: unit 0 of stage 0 is never updated");

  const auto twice = [&](const std::string& name) {
    World world;
    for (size_t rank = 0; rank < 4; ++rank) world.lists[rank].insert(world.find(rank, name), *world.find(rank, name));
    return world.validated();
  };
  check_found(twice("0WAIT_GRADS1"), "rank 0: 0WAIT_GRADS1: no reduction is in flight");
  check_found(twice("0SUM_PARTIAL"), "rank 0: 0SUM_PARTIAL occurs twice");
  check_found(twice("NORM"), "rank 0: NORM occurs twice");
  check_found(twice("0UPDATE1"), "rank 0: 0UPDATE1 occurs twice");

  World early;
  for (size_t rank = 0; rank < 4; ++rank) early.move_before(rank, "0SUM_PARTIAL", "0REDUCE_TIED0");
  check_found(early.validated(), "rank 0: 0SUM_PARTIAL comes before the stage's gradients are reduced");
  World last;
  for (size_t rank = 0; rank < 4; ++rank) last.lists[rank].push_back(*last.find(rank, "0REDUCE_REPLICAS1"));
  check_found(last.validated(), "rank 0: 0REDUCE_REPLICAS1 comes after NORM");
  check_found(last.validated(), "rank 0: unit 1 of stage 0 is never waited for after its last reduction");

  // NORM meets the world, SUM_PARTIAL the tensor group: one rank that skips it leaves the others waiting.
  World one_skips;
  std::erase_if(one_skips.lists[5], is(ActionType::kNorm));
  check_found(one_skips.validated(), "rank 0 waits at NORM for the step group of rank 0, which rank 5 has not joined");
  World partial;
  std::erase_if(partial.lists[2], is(ActionType::kSumPartial));
  check_found(partial.validated(), "rank 3 waits at 0SUM_PARTIAL for the tensor group of rank 2, which rank 2 has not joined");
}

TEST_CASE("what follows the sums of a step is in the list, in its order, and nothing else is") {
  const ActionType aggregate = ActionType::kAggregate, noise = ActionType::kNoise, norm = ActionType::kNorm, outer = ActionType::kOuter,
                   exchange = ActionType::kExchange;
  const auto policy = [](const StepEnd& end) { return LoweringPolicy{.unshard_each_use = true, .end = end}; };
  const World all(policy({{aggregate, noise, norm, outer}})), served(policy({{norm, exchange}, false}));
  CHECK(all.validated().empty());
  CHECK(served.validated().empty());
  CHECK_THAT(to_string(all.lists[0]), Catch::Contains("0SUM_PARTIAL AGGREGATE NOISE NORM 0UPDATE0") && Catch::EndsWith(" OUTER"));
  CHECK_THAT(to_string(served.lists[0]), Catch::EndsWith("NORM EXCHANGE"));

  for (const ActionType type : all.end.actions) {
    World missing = all;
    missing.erase_on_all([&](const Action& action) { return action.type == type; });
    check_found(missing.validated(), concat("rank 0: ", name_of(type), " is missing"));
    World twice = all;
    for (size_t rank = 0; rank < 8; ++rank) twice.lists[rank].insert(twice.find(rank, name_of(type)), Action{type});
    check_found(twice.validated(), concat("rank 7: ", name_of(type), " occurs twice"));
  }
  World moved = all, early = all, unasked = all, updates = all;
  for (size_t rank = 0; rank < 8; ++rank) {
    moved.move_before(rank, "NORM", "NOISE");
    early.move_before(rank, "OUTER", rank < 4 ? "0UPDATE1" : "1UPDATE1");
    unasked.lists[rank].push_back({exchange});
  }
  updates.end.updates = false;
  check_found(moved.validated(), "rank 0: NOISE comes after NORM");
  check_found(early.validated(), "rank 4: OUTER comes before the updates of stage 1");
  check_found(unasked.validated(), "rank 0: EXCHANGE has no place in this list");
  check_found(updates.validated(), "rank 0: 0UPDATE0: the updates are EXCHANGE's");
  // One rank that skips AGGREGATE leaves the others waiting.
  World alone = all;
  alone.lists[5].erase(alone.find(5, "AGGREGATE"));
  check_found(alone.validated(), "rank 4 waits at AGGREGATE for the step group of rank 0, which rank 5 has not joined");

  World forward;  // a list that does not train has none of them
  const ActionLists plan = lower(forward_only({0, 1}, 4), forward.units, {});
  std::vector<ActionList> lists;
  for (int rank = 0; rank < 8; ++rank) lists.push_back(plan[static_cast<size_t>(coordinate_of(forward.mesh, rank).pipeline)]);
  for (ActionList& list : lists) list.push_back({norm});
  check_found(validate(lists, forward.mesh, forward.units, 4, false), "rank 0: NORM has no place in this list");
}

TEST_CASE("islands meet in OUTER") {
  const LoweringPolicy policy{.end = {.actions = {ActionType::kNorm, ActionType::kOuter}}};
  const std::vector<StageUnits> units = toy_units(1, 2, false);
  const MeshShape mesh{.islands = 2};
  std::vector<ActionList> lists(2, lower(one_forward_one_backward(1, 2), units, policy)[0]);
  CHECK(validate(lists, mesh, units, 2, true, policy.end).empty());
  lists[1].pop_back();
  check_found(validate(lists, mesh, units, 2, true, policy.end),
              "rank 0 waits at OUTER for the islands group of rank 0, which rank 1 has not joined");
}

TEST_CASE("parameters that are never resharded, or too early, are reported") {
  World world;
  world.erase_on_all([](const Action& a) { return a.type == ActionType::kReshard && a.stage == 1 && a.unit == 2; });
  const Violations violations = world.validated();
  check_found(violations, "rank 4: unit 2 of stage 1 is never resharded after its last use");
  check_found(violations, "rank 4: 1UNSHARD2: the unit is already gathered");

  World early;
  for (size_t rank = 0; rank < 4; ++rank) std::iter_swap(early.find(rank, "0RESHARD0"), early.find(rank, "0F0.0"));
  check_found(early.validated(), "rank 0: 0F0.0 runs before unit 0 is gathered");
}

TEST_CASE("compute before its input is reported") {
  World world;
  for (size_t rank = 4; rank < 8; ++rank) world.move_before(rank, "1RECV_F0", "1F0.1");
  check_found(world.validated(), "rank 4: 1F0.0 runs before its input is received");

  World backward;
  for (size_t rank = 0; rank < 4; ++rank) backward.move_before(rank, "0RECV_B0", "0B0.1");
  check_found(backward.validated(), "rank 0: 0B0.2 runs before the gradient of its output is received");

  World forward;
  for (size_t rank = 4; rank < 8; ++rank) forward.move_before(rank, "1B1.2", "1F1.1");
  check_found(forward.validated(), "rank 4: 1B1.2 runs before the forward");

  World send;
  for (size_t rank = 0; rank < 4; ++rank) send.move_before(rank, "0SEND_F0", "0F0.2");
  check_found(send.validated(), "rank 0: 0SEND_F0 sends before the output is computed");
}

TEST_CASE("several stages on a rank: hand-overs, shared units and fused parts") {
  // A V of two ranks: rank 1 hands over from stage 1 to stage 2 and back, and the head of stage 3 reads the embedding of stage 0, both on rank 0.
  const MeshShape mesh{2, 1, 1, 1};
  const std::vector<StageUnits> units = toy_units(4, 1, true, true, true);
  const ActionLists lists = lower(zb_v(2, 2), units, {.unshard_each_use = true});
  REQUIRE(validate(lists, mesh, units, 2, true) == Violations{});
  const auto with = [&](size_t rank, const auto& edit) {
    ActionLists edited = lists;
    const auto find = [&](const std::string& name) {
      const auto found = std::ranges::find(edited[rank], name, [](const Action& a) { return to_string(a); });
      REQUIRE(found != edited[rank].end());
      return found;
    };
    edit(edited[rank], find);
    return validate(edited, mesh, units, 2, true);
  };
  check_found(with(1, [](ActionList&, const auto& find) { std::iter_swap(find("1F0.0"), find("2F0.0")); }),
              "2F0.0 runs before its input is received");
  check_found(with(1, [](ActionList&, const auto& find) { std::iter_swap(find("1I0.0"), find("2I0.0")); }),
              "1I0.0 runs before the gradient of its output is received");
  check_found(with(1,
                   [](ActionList& list, const auto& find) {
                     list.insert(std::next(find("1F0.0")), {ActionType::kSendForward, 1, 0});
                   }),
              "1SEND_F0: stage 2 is on the same rank, so there must be no transfer");
  check_found(with(0,
                   [](ActionList& list, const auto& find) {
                     list.insert(find("3W0.0"), {ActionType::kBackwardWeight, 3, 0, -1, 1});
                   }),
              "3W0.1: the part is fused and has no W");
  check_found(with(0, [](ActionList& list, const auto& find) { list.erase(find("3W0.0")); }),
              "stage 3 does not compute the weight gradients of micro-batch 0");
  check_found(with(0, [](ActionList& list, const auto& find) { list.erase(find("3I0.1")); }), "3I0.0 runs twice or out of order");
  // The embedding's gradient is complete only when stage 0 and the head have both added to it.
  check_found(with(0,
                   [](ActionList& list, const auto& find) {
                     const Action reduce = *find("0REDUCE_GRADS0");
                     list.erase(find("0REDUCE_GRADS0"));
                     list.insert(find("3I1.1"), reduce);
                   }),
              "unit 0 of stage 0 is never reduced after the last gradient is added");
  check_found(with(0,
                   [](ActionList& list, const auto& find) {
                     const auto second = std::find(std::next(find("0UNSHARD0")), list.end(), *find("0UNSHARD0"));
                     REQUIRE(second != list.end());
                     list.erase(second);
                   }),
              "runs before unit 0 is gathered");

  const std::vector<StageUnits> elsewhere = toy_units(2, 1, true, true, true);
  check_found(validate(lower(zb_h1(2, 2), toy_units(2, 1, false, false, true), {}), mesh, elsewhere, 2, true),
              "1F0.1 reads a unit of stage 0, which is not on this rank");
}

TEST_CASE("messages without a matching partner are reported") {
  World world;
  for (size_t rank = 0; rank < 4; ++rank) std::swap(world.find(rank, "0SEND_F2")->microbatch, world.find(rank, "0SEND_F1")->microbatch);
  check_found(world.validated(), "messages do not match: rank ");

  World unmatched;
  unmatched.lists[0].erase(unmatched.find(0, "0SEND_F3"));
  const Violations violations = unmatched.validated();
  check_found(violations, "rank 0: stage 0 never sends the output of micro-batch 3");
  check_found(violations, "rank 4 waits at 1RECV_F3");
}

TEST_CASE("actions that a list must not contain are reported") {
  const std::vector<StageUnits> units = toy_units(2, 1, false);
  const MeshShape mesh{2, 1, 1, 1};
  check_found(validate(lower(gpipe(2, 2), units, {}), mesh, units, 2, false), "0B0.1 is in a list that does not train");
  check_found(validate(lower(gpipe(2, 2), units, {}), mesh, units, 1, true), "0F1.0 names a micro-batch, part or unit that does not exist");
  ActionLists stray = lower(gpipe(2, 2), units, {});
  stray[0].push_back({ActionType::kForward, 1, 0, -1, 0});
  check_found(validate(stray, mesh, units, 2, true), "belongs to a stage that is not on this rank");
  CHECK_THROWS_AS(validate(stray, {4, 1, 1, 1}, units, 2, true), InternalError);
}

TEST_CASE("the proof takes sixteen thousand ranks") {
  const std::vector<StageUnits> units = toy_units(8, 2, true);
  const ActionLists lists = lower(one_forward_one_backward(8, 16), units, {.unshard_each_use = true});
  CHECK(validate(lists, {8, 4, 64, 8}, units, 16, true) == Violations{});
}

TEST_CASE("if the ranks of a pipeline rank share a list, two ranks per axis deadlock exactly when many do") {
  std::mt19937 random(7);
  int sound = 0, broken = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const std::vector<StageUnits> units = toy_units(3, 2, true);
    const LoweringPolicy policy{.unshard_each_use = trial % 2 == 0, .reduce_each_microbatch = trial % 3 == 0};
    ActionLists lists = lower(one_forward_one_backward(3, 4), units, policy);
    // Swap up to two pairs of actions, or remove one: most such lists are wrong, some are not.
    for (size_t swaps = below(3); swaps > 0; --swaps) {
      ActionList& list = lists[below(lists.size())];
      std::swap(list[below(list.size())], list[below(list.size())]);
    }
    if (below(5) == 0) lists[below(3)].pop_back();
    const bool few = validate(lists, {3, 2, 2, 2}, units, 4, true).empty();
    const bool many = validate(lists, {3, 3, 5, 4}, units, 4, true).empty();
    CHECK(few == many);
    ++(many ? sound : broken);
  }
  CHECK(sound > 50);
  CHECK(broken > 50);
}
