#include "parallel/pipeline/action.h"

#include <algorithm>

#include "parallel/mesh.h"
#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("the groups that each action meets") {
  using Axes = std::vector<MeshAxis>;
  struct Row {
    ActionType type;
    Axes axes;
  };
  for (const Row& row : {Row{ActionType::kForward, {MeshAxis::kTensor}},
                         Row{ActionType::kBackward, {MeshAxis::kTensor}},
                         Row{ActionType::kBackwardInput, {MeshAxis::kTensor}},
                         Row{ActionType::kBackwardWeight, {MeshAxis::kTensor}},
                         Row{ActionType::kSendForward, {}},
                         Row{ActionType::kRecvForward, {}},
                         Row{ActionType::kSendBackward, {}},
                         Row{ActionType::kRecvBackward, {}},
                         Row{ActionType::kUnshard, {MeshAxis::kShard}},
                         Row{ActionType::kReshard, {}},
                         Row{ActionType::kReduceGrads, {MeshAxis::kShard}},
                         Row{ActionType::kReduceReplicas, {MeshAxis::kReplicate}},
                         Row{ActionType::kReduceTied, {MeshAxis::kEmbedding}},
                         Row{ActionType::kWaitGrads, {}},
                         Row{ActionType::kSumPartial, {MeshAxis::kTensor, MeshAxis::kKv}},
                         Row{ActionType::kNorm, {MeshAxis::kStep}},
                         Row{ActionType::kOrthogonalize, {MeshAxis::kShard, MeshAxis::kTensor}},
                         Row{ActionType::kUpdate, {}},
                         Row{ActionType::kAggregate, {MeshAxis::kStep}},
                         Row{ActionType::kNoise, {}},
                         Row{ActionType::kOuter, {MeshAxis::kIslands}},
                         Row{ActionType::kExchange, {MeshAxis::kStep}}}) {
    CAPTURE(name_of(row.type));
    CHECK(std::ranges::equal(axes_of({row.type}), row.axes));
  }
}

TEST_CASE("what a rank is doing, by action") {
  CHECK(describe({ActionType::kForward, 0, 3, -1, 2}, "blocks.2") == "forward of micro-batch 3, blocks.2");
  CHECK(describe({ActionType::kUnshard, 0, -1, 1}, "blocks.2") == "gathering blocks.2");
  CHECK(describe({ActionType::kNorm}, "") == "gradient norm");
  CHECK(describe({ActionType::kOuter}, "").empty());  // its handler says which step it follows, and nothing in most steps
}
