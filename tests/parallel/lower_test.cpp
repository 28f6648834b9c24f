#include "parallel/pipeline/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::one_stage_each;
using test::toy_units;

namespace {

std::vector<StageUnits> one_part_each(int stages) { return std::vector<StageUnits>(static_cast<size_t>(stages), StageUnits{{{0}}, 1, -1}); }

/// The list with transfers that are issued together in braces.
std::string grouped(const ActionList& list) {
  std::string text;
  int group = -1;
  for (const Action& action : list) {
    const int current = is_transfer(action.type) ? action.group : -1;
    if (current != group && group >= 0) text += " }";
    if (current != group && current >= 0) text += " {";
    text += " " + to_string(action);
    group = current;
  }
  return text.substr(1) + (group >= 0 ? " }" : "");
}

std::vector<std::string> of_types(const ActionList& list, const std::set<ActionType>& types) {
  std::vector<std::string> found;
  for (const Action& action : list)
    if (types.contains(action.type)) found.push_back(to_string(action));
  return found;
}

long count(const ActionList& list, ActionType type) {
  return std::count_if(list.begin(), list.end(), [&](const Action& a) { return a.type == type; });
}

}  // namespace

TEST_CASE("updates of whole matrices come before the others of their stage, in stages that have some") {
  std::vector<StageUnits> units = toy_units(4, 1, false);
  for (const size_t stage : {1, 2}) units[stage].has_matrix_updates = true;
  const ActionLists lists = lower(interleaved_1f1b(2, 2, 2), units, {});
  const auto end_of = [&](size_t rank) {
    std::string text;
    for (const std::string& name : of_types(lists[rank], {ActionType::kNorm, ActionType::kOrthogonalize, ActionType::kUpdate})) text += name + " ";
    return text;
  };
  CHECK(end_of(0) == "NORM 0UPDATE0 0UPDATE1 2ORTHOGONALIZE 2UPDATE0 ");
  CHECK(end_of(1) == "NORM 1ORTHOGONALIZE 1UPDATE0 3UPDATE0 3UPDATE1 ");
}

TEST_CASE("the exact lowered lists of two stages, tied, gathered for each use, reduced at each micro-batch") {
  const ActionLists lists = lower(one_forward_one_backward(2, 2), toy_units(2, 1, true), {.unshard_each_use = true, .reduce_each_microbatch = true});
  CHECK(grouped(lists[0]) ==
        "0UNSHARD0 0UNSHARD1 0F0.0 0RESHARD0 0UNSHARD0 0F0.1 { 0SEND_F0 } 0RESHARD1 0UNSHARD1 0F1.0 0RESHARD0 0F1.1 { 0SEND_F1 } { 0RECV_B0 } "
        "0UNSHARD0 0B0.1 0REDUCE_GRADS1 0RESHARD1 0UNSHARD1 0B0.0 { 0RECV_B1 } 0WAIT_GRADS1 0REDUCE_GRADS0 0RESHARD0 "
        "0UNSHARD0 0B1.1 0WAIT_GRADS0 0REDUCE_GRADS1 0RESHARD1 0B1.0 0WAIT_GRADS1 0REDUCE_GRADS0 0REDUCE_REPLICAS1 0RESHARD0 "
        "0WAIT_GRADS0 0REDUCE_REPLICAS0 0WAIT_GRADS0 0REDUCE_TIED0 0WAIT_GRADS0 0WAIT_GRADS1 0SUM_PARTIAL NORM 0UPDATE0 0UPDATE1");
  CHECK(grouped(lists[1]) ==
        "{ 1RECV_F0 } { 1RECV_F1 } 1UNSHARD0 1UNSHARD1 1UNSHARD2 1F0.0 1RESHARD0 1F0.1 1UNSHARD0 1B0.1 1REDUCE_GRADS1 1WAIT_GRADS1 1REDUCE_GRADS2 "
        "1RESHARD1 "
        "1RESHARD2 1B0.0 { 1SEND_B0 } 1WAIT_GRADS2 1REDUCE_GRADS0 1UNSHARD1 1UNSHARD2 1F1.0 1RESHARD0 1F1.1 1UNSHARD0 1B1.1 1WAIT_GRADS0 "
        "1REDUCE_GRADS1 1WAIT_GRADS1 1REDUCE_GRADS2 1REDUCE_REPLICAS1 1RESHARD1 1RESHARD2 1B1.0 { 1SEND_B1 } 1WAIT_GRADS2 1REDUCE_GRADS0 "
        "1REDUCE_REPLICAS2 1RESHARD0 1WAIT_GRADS0 1REDUCE_REPLICAS0 1WAIT_GRADS2 1REDUCE_TIED2 1WAIT_GRADS0 1WAIT_GRADS1 1WAIT_GRADS2 "
        "1SUM_PARTIAL NORM 1UPDATE0 1UPDATE1 1UPDATE2");
}

TEST_CASE("forward-only lists gather once, reduce nothing and reshard at the end") {
  const ActionLists lists = lower(forward_only(one_stage_each(2), 2), toy_units(2, 1, true), {});
  CHECK(grouped(lists[0]) == "0UNSHARD0 0UNSHARD1 0F0.0 0F0.1 { 0SEND_F0 } 0F1.0 0F1.1 { 0SEND_F1 } 0RESHARD0 0RESHARD1");
  CHECK(grouped(lists[1]) == "{ 1RECV_F0 } { 1RECV_F1 } 1UNSHARD0 1UNSHARD1 1UNSHARD2 1F0.0 1F0.1 1F1.0 1F1.1 1RESHARD0 1RESHARD1 1RESHARD2");
  for (const ActionList& list : lists) CHECK(max_in_flight(list) == 1);
}

TEST_CASE("a tied unit of a single stage is reduced once, after both of its uses, and gathered for each") {
  const std::vector<StageUnits> units = toy_units(1, 2, true);
  const ActionList list = lower(one_forward_one_backward(1, 2), units, {.unshard_each_use = true, .prefetch = 0})[0];
  CHECK(of_types(list, {ActionType::kReduceGrads, ActionType::kReduceReplicas, ActionType::kReduceTied}) ==
        std::vector<std::string>{"0REDUCE_GRADS3", "0REDUCE_GRADS2", "0REDUCE_REPLICAS3", "0REDUCE_GRADS1", "0REDUCE_REPLICAS2", "0REDUCE_GRADS0",
                                 "0REDUCE_REPLICAS1", "0REDUCE_REPLICAS0", "0REDUCE_TIED0"});
  // Each micro-batch: the embedding, then the head's forward and backward as one use, then the embedding's backward, which the next forward follows.
  CHECK(std::count(list.begin(), list.end(), Action{ActionType::kUnshard, 0, -1, 0}) == 5);
  CHECK(std::count(list.begin(), list.end(), Action{ActionType::kReshard, 0, -1, 0}) == 5);
}

TEST_CASE("receives are posted before the compute that overlaps them, or after it if transfers block") {
  const ActionLists lists = lower(forward_only(one_stage_each(3), 3), one_part_each(3), {});
  CHECK(grouped(lists[1]) == "{ 1RECV_F0 } { 1RECV_F1 } 1UNSHARD0 1F0.0 { 1SEND_F0 } { 1RECV_F2 } 1F1.0 { 1SEND_F1 } 1F2.0 { 1SEND_F2 } 1RESHARD0");
  const ActionLists blocking = lower(forward_only(one_stage_each(3), 3), one_part_each(3), {.receive_ahead = false});
  CHECK(grouped(blocking[1]) == "{ 1RECV_F0 } 1UNSHARD0 1F0.0 { 1RECV_F1 1SEND_F0 } 1F1.0 { 1RECV_F2 1SEND_F1 } 1F2.0 { 1SEND_F2 } 1RESHARD0");
}

TEST_CASE("blocking steady 1F1B exchanges forward and backward with one neighbour in one group") {
  const ActionLists lists = lower(one_forward_one_backward(4, 8), one_part_each(4), {.receive_ahead = false});
  const std::string middle = grouped(lists[2]);
  for (int m = 2; m < 6; ++m) {
    CHECK_THAT(middle, Catch::Contains(concat("2F", m, ".0 { 2SEND_F", m, " 2RECV_B", m - 1, " } 2B", m - 1, ".0 { ")));
    CHECK_THAT(middle, Catch::Contains(concat("2B", m - 1, ".0 { 2RECV_F", m + 1, " 2SEND_B", m - 1, " } 2F", m + 1, ".0")));
  }
  for (int m = 4; m < 8; ++m) CHECK_THAT(grouped(lists[0]), Catch::Contains(concat("0F", m, ".0 { 0SEND_F", m, " 0RECV_B", m - 3, " } 0B", m - 3)));
  for (int m = 1; m < 7; ++m) CHECK_THAT(grouped(lists[3]), Catch::Contains(concat("3B", m, ".0 { 3RECV_F", m + 1, " 3SEND_B", m, " } 3F", m + 1)));
}

TEST_CASE("neighbours see their transfers in the same order") {
  const std::vector<StageUnits> units = toy_units(5, 2, false);
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
    const ActionLists lists = lower(make_schedule(kind, 5, 1, 7), units, {});
    for (int s = 0; s + 1 < 5; ++s) {
      std::vector<std::string> upper, below;
      for (const Action& a : lists[static_cast<size_t>(s)])
        if (a.type == ActionType::kSendForward || a.type == ActionType::kRecvBackward) upper.push_back(to_string(a));
      for (const Action& a : lists[static_cast<size_t>(s + 1)])
        if (a.type == ActionType::kRecvForward || a.type == ActionType::kSendBackward) below.push_back(to_string(counterpart(a)));
      CHECK(upper.size() == 14);
      CHECK(upper == below);
    }
  }
}

TEST_CASE("prefetch moves the gather ahead by that many parts and never before the last reshard") {
  const std::vector<StageUnits> units = toy_units(1, 4, false);
  for (const int prefetch : {0, 1, 2, 5}) {
    const ActionList list = lower(one_forward_one_backward(1, 1), units, {.unshard_each_use = true, .prefetch = prefetch})[0];
    int parts = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_compute(list[i].type)) ++parts;
      if (list[i].type != ActionType::kUnshard) continue;
      int ahead = 0;  // parts between the gather and its first reader
      size_t reader = i;
      for (; !is_compute(list[reader].type) || list[reader].part != list[i].unit; ++reader) ahead += is_compute(list[reader].type) ? 1 : 0;
      const bool backward = list[reader].type == ActionType::kBackward;
      // Six parts; in the backward, 2 (5 - k) parts lie between part k and its own forward, after which the copy is freed.
      const int use = parts + ahead;
      CHECK(ahead == std::min({prefetch, use, backward ? 2 * (5 - list[i].unit) : use}));
    }
    CHECK(count(list, ActionType::kUnshard) == 11);  // the last part's forward and backward share one copy
    CHECK(count(list, ActionType::kReshard) == 11);
  }
}

TEST_CASE("a reduction is waited for once: before the rank's next one or the next gradient of its unit, and at most two full gradients are alive") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (const bool each : {false, true}) {
      const int v = default_virtual_stages(kind), stages = 3 * v;
      const std::vector<StageUnits> units = toy_units(stages, 2, false, test::ends_meet(kind, 3), true);
      for (const ActionList& list : lower(make_schedule(kind, 3, v, 6), units, {.unshard_each_use = each, .reduce_each_microbatch = each})) {
        CAPTURE(name_of(kind), each);
        std::set<std::pair<int, int>> scattered, full;  // being reduced over shards; with a full gradient
        std::map<std::pair<int, int>, int> reductions, waits;
        for (const Action& action : list) {
          const std::pair unit(action.stage, action.unit);
          const bool fused = action.part == units[static_cast<size_t>(std::max(action.stage, 0))].fused_part;
          if (action.type == ActionType::kBackward || action.type == ActionType::kBackwardWeight ||
              (action.type == ActionType::kBackwardInput && fused)) {
            full.emplace(action.stage, action.part);
            CHECK_FALSE(scattered.contains({action.stage, action.part}));
          }
          if (action.type == ActionType::kReduceGrads) {
            CHECK(scattered.empty());
            scattered.insert(unit);
          }
          if (action.type >= ActionType::kReduceGrads && action.type <= ActionType::kReduceTied) ++reductions[unit];
          if (action.type != ActionType::kWaitGrads) continue;
          ++waits[unit];
          if (scattered.erase(unit) > 0 && each) full.erase(unit);
        }
        CHECK(reductions == waits);
        CHECK(count(list, ActionType::kUpdate) == static_cast<long>(reductions.size()));
        CHECK(count(list, ActionType::kSumPartial) == v);
        CHECK(count(list, ActionType::kNorm) == 1);
        if (each) CHECK(full.empty());
      }
    }
  }
}

TEST_CASE("gradients are reduced once a step or once a micro-batch, replicas and ties once") {
  for (const bool each : {false, true}) {
    const ActionLists lists = lower(gpipe(3, 4), toy_units(3, 2, true), {.reduce_each_microbatch = each});
    const std::vector<long> units{3, 2, 4};
    for (size_t s = 0; s < 3; ++s) {
      CHECK(count(lists[s], ActionType::kReduceGrads) == units[s] * (each ? 4 : 1));
      CHECK(count(lists[s], ActionType::kReduceReplicas) == units[s]);
      CHECK(count(lists[s], ActionType::kReduceTied) == (s == 1 ? 0 : 1));
    }
  }
}

TEST_CASE("the exact lowered lists of a V: hand-overs without transfers, an embedding that two stages of a rank read, a head without W") {
  const std::vector<StageUnits> units = toy_units(4, 1, true, true, true);
  const ActionLists lists = lower(zb_v(2, 1), units, {.unshard_each_use = true});
  CHECK(grouped(lists[0]) ==
        "0UNSHARD0 0UNSHARD1 0F0.0 0RESHARD0 3UNSHARD0 0F0.1 { 0SEND_F0 } { 3RECV_F0 } 0RESHARD1 3UNSHARD1 0UNSHARD0 3F0.0 3RESHARD0 3F0.1 3UNSHARD0 "
        "3I0.1 3REDUCE_GRADS1 0RESHARD0 3RESHARD1 0UNSHARD1 3I0.0 { 3SEND_B0 } 3RESHARD0 3W0.0 { 0RECV_B0 } 3WAIT_GRADS1 3REDUCE_GRADS0 "
        "3REDUCE_REPLICAS1 0UNSHARD0 0I0.1 0RESHARD1 0I0.0 0RESHARD0 0W0.1 3WAIT_GRADS0 0REDUCE_GRADS1 3REDUCE_REPLICAS0 0W0.0 0WAIT_GRADS1 "
        "0REDUCE_GRADS0 0REDUCE_REPLICAS1 0WAIT_GRADS0 0REDUCE_REPLICAS0 0WAIT_GRADS0 0WAIT_GRADS1 3WAIT_GRADS0 3WAIT_GRADS1 0SUM_PARTIAL "
        "3SUM_PARTIAL NORM 0UPDATE0 0UPDATE1 3UPDATE0 3UPDATE1");
  CHECK(grouped(lists[1]) ==
        "{ 1RECV_F0 } 1UNSHARD0 2UNSHARD0 1F0.0 1RESHARD0 2F0.0 { 2SEND_F0 } { 2RECV_B0 } 1UNSHARD0 2I0.0 2RESHARD0 2W0.0 2REDUCE_GRADS0 1I0.0 { "
        "1SEND_B0 } 1RESHARD0 1W0.0 2WAIT_GRADS0 1REDUCE_GRADS0 2REDUCE_REPLICAS0 1WAIT_GRADS0 1REDUCE_REPLICAS0 1WAIT_GRADS0 2WAIT_GRADS0 "
        "1SUM_PARTIAL 2SUM_PARTIAL NORM 1UPDATE0 2UPDATE0");
}

TEST_CASE("interleaved on two ranks: both neighbours are the same rank, and each pair's messages leave and arrive in one order") {
  for (int m = 1; m <= 9; ++m) {
    const ActionLists lists = lower(interleaved_1f1b(2, 3, m), toy_units(6, 1, false), {});
    for (const size_t sender : {0U, 1U}) {
      std::vector<std::string> sent, received;
      for (const Action& a : lists[sender])
        if (is_send(a.type)) sent.push_back(to_string(a));
      for (const Action& a : lists[1 - sender])
        if (is_receive(a.type)) received.push_back(to_string(counterpart(a)));
      CHECK(sent.size() == static_cast<size_t>(5 * m));
      CHECK(sent == received);
    }
  }
}

TEST_CASE("lowering refuses invalid schedules") {
  CHECK_THROWS_WITH(lower(gpipe(2, 1), one_part_each(3), {}), Catch::Contains("3 stage descriptions do not match"));
  CHECK_THROWS_WITH(lower({test::compute_list(0, "F0 B0 F1 B1"), test::compute_list(1, "F1 F0 B0 B1")}, one_part_each(2), {}),
                    Catch::Contains("is stuck at"));
}
