// The three losses by NCCL's order of operations that lists can show: they are named, and no list without them is accused.
#include "parallel/pipeline/launch_order.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::toy_units;

namespace {

/// Two ranks on every axis but the tensor axis.
constexpr MeshShape kApart{.pipeline = 2, .replicate = 2, .shard = 2, .islands = 2};
constexpr MeshShape kTensor{.pipeline = 2, .replicate = 2, .shard = 2, .tensor = 2, .islands = 2};

std::string text_of(const ActionList& list, const std::vector<StageUnits>& units, const MeshShape& mesh) {
  std::string all;
  for (const std::string& line : describe_launch_edges(list, launch_edges(list, units, mesh))) all += line + "\n";
  return all;
}

/// One stage of three parts with a unit each.
const std::vector<StageUnits> kOneStage{{.units_of_part = {{0}, {1}, {2}}, .units = 3}};

Action unit(ActionType type, int number) { return {type, 0, -1, number}; }
Action part(ActionType type, int number) { return {type, 0, 0, -1, number}; }

}  // namespace

TEST_CASE("launch order: a gather behind a reduction holds back the tensor collectives of the next backward") {
  const ActionList list = {unit(ActionType::kUnshard, 2), part(ActionType::kBackward, 2), unit(ActionType::kReduceGrads, 2),
                           unit(ActionType::kUnshard, 0), part(ActionType::kBackward, 1), unit(ActionType::kWaitGrads, 2),
                           part(ActionType::kBackward, 0)};
  CHECK(launch_edges(list, kOneStage, kTensor) == std::vector<LaunchEdge>{{2, 3, 4}});
  CHECK(text_of(list, kOneStage, kTensor) == "B waits behind UNSHARD, queued behind REDUCE_GRADS: 1 time\n");
  CHECK(launch_edges(list, kOneStage, kApart).empty());  // compute that issues nothing waits for nothing
}

TEST_CASE("launch order: nothing is held back behind an operation that has been waited for, or by one alone") {
  // The reduction ends before the gather is queued.
  CHECK(launch_edges(
            {unit(ActionType::kReduceGrads, 2), unit(ActionType::kWaitGrads, 2), unit(ActionType::kUnshard, 0), part(ActionType::kBackward, 1)},
            kOneStage, kTensor)
            .empty());
  CHECK(
      launch_edges({unit(ActionType::kReduceGrads, 2), part(ActionType::kBackward, 1), part(ActionType::kBackward, 0)}, kOneStage, kTensor).empty());
  // The part that reads a gathered unit waits for the gather, so the next gather is not queued behind it.
  CHECK(launch_edges({unit(ActionType::kUnshard, 2), part(ActionType::kForward, 2), unit(ActionType::kUnshard, 1), part(ActionType::kForward, 0)},
                     kOneStage, kTensor)
            .empty());
}

TEST_CASE("launch order: posted receives hold back gathers, receives of one group do not wait for each other") {
  const std::vector<StageUnits> units{{.units_of_part = {{0}}, .units = 1}, {.units_of_part = {{0}}, .units = 1}};
  const auto receive = [](int microbatch, int group) { return Action{ActionType::kRecvForward, 1, microbatch, -1, -1, group}; };
  const Action gather{ActionType::kUnshard, 1, -1, 0}, forward{ActionType::kForward, 1, 0, -1, 0};
  CHECK(launch_edges({receive(0, 0), receive(1, 1), gather, forward}, units, kApart) == std::vector<LaunchEdge>{{0, 1, 2}});
  CHECK(launch_edges({receive(0, 0), receive(1, 0), gather, forward}, units, kApart).empty());
  CHECK(launch_edges({gather, receive(0, 0), receive(1, 1), forward}, units, kApart).empty());
}

TEST_CASE("launch order: sums over islands in flight hold back the first operation of the next step, one sum alone does not") {
  const LoweringPolicy policy{.end = {.actions = {ActionType::kNorm, ActionType::kOuter}}};
  const ActionList list = lower(one_forward_one_backward(1, 2), kOneStage, policy)[0];
  const auto outer = std::ranges::find(list, ActionType::kOuter, &Action::type) - list.begin();
  REQUIRE(list[0] == unit(ActionType::kUnshard, 0));
  const auto at = static_cast<size_t>(outer);
  const std::vector<LaunchEdge> without = launch_edges(list, kOneStage, kApart, 1), with = launch_edges(list, kOneStage, kApart, 3);
  REQUIRE(with.size() == without.size() + 1);
  CHECK(with.back() == LaunchEdge{at, at, 0});
  CHECK_THAT(describe_launch_edges(list, {with.back()}).front(), Catch::Contains("UNSHARD waits for all but the last sum of OUTER: 1 time"));
}

TEST_CASE("launch order: a group of one rank issues nothing") {
  const ActionList list = {unit(ActionType::kUnshard, 2), part(ActionType::kBackward, 2), unit(ActionType::kReduceGrads, 2),
                           unit(ActionType::kUnshard, 0), part(ActionType::kBackward, 1)};
  CHECK(launch_edges(list, kOneStage, {.tensor = 2}).empty());
  CHECK(launch_edges(list, kOneStage, {.shard = 2, .tensor = 2}).size() == 1);
}

TEST_CASE("launch order: the lists of today have both losses where they are expected") {
  const LoweringPolicy each_use{.unshard_each_use = true, .reduce_each_microbatch = true};
  const auto lists = [](int stages, int microbatches, const LoweringPolicy& policy) {
    return lower(one_forward_one_backward(stages, microbatches), toy_units(stages, 4, false), policy);
  };
  const std::vector<StageUnits> one = toy_units(1, 4, false), two = toy_units(2, 4, false);
  CHECK_THAT(text_of(lists(1, 2, each_use)[0], one, kTensor), Catch::Contains("B waits behind UNSHARD, queued behind REDUCE_GRADS"));
  CHECK(text_of(lists(1, 2, each_use)[0], one, kApart).find("B waits") == std::string::npos);
  CHECK_THAT(text_of(lists(2, 4, {})[1], two, kApart), Catch::Contains("UNSHARD waits behind RECV_F, queued behind RECV_F"));
  CHECK(text_of(lists(1, 4, {})[0], one, kTensor).find("REDUCE_GRADS") == std::string::npos);  // once a step, with a wait before the next
}
