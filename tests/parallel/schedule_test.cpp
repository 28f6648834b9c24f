#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "parallel/pipeline/lower.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::compute_list;

TEST_CASE("1F1B of four stages and eight micro-batches is the published figure") {
  const PipelinePlan plan = one_forward_one_backward(4, 8);
  REQUIRE(plan.size() == 4);
  CHECK(plan[0] == compute_list(0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"));
  CHECK(plan[1] == compute_list(1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"));
  CHECK(plan[2] == compute_list(2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"));
  CHECK(plan[3] == compute_list(3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"));
}

TEST_CASE("1F1B with fewer micro-batches than stages, and on one stage") {
  CHECK(one_forward_one_backward(4, 2) ==
        PipelinePlan{compute_list(0, "F0 F1 B0 B1"), compute_list(1, "F0 F1 B0 B1"), compute_list(2, "F0 F1 B0 B1"), compute_list(3, "F0 B0 F1 B1")});
  CHECK(one_forward_one_backward(3, 1) == PipelinePlan{compute_list(0, "F0 B0"), compute_list(1, "F0 B0"), compute_list(2, "F0 B0")});
  CHECK(one_forward_one_backward(1, 3) == PipelinePlan{compute_list(0, "F0 B0 F1 B1 F2 B2")});
}

TEST_CASE("GPipe does all forwards, then all backwards in the same order") {
  CHECK(gpipe(2, 3) == PipelinePlan{compute_list(0, "F0 F1 F2 B0 B1 B2"), compute_list(1, "F0 F1 F2 B0 B1 B2")});
  const PipelinePlan plan = gpipe(4, 8);
  REQUIRE(plan.size() == 4);
  for (int s = 0; s < 4; ++s) CHECK(plan[static_cast<size_t>(s)] == compute_list(s, "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7"));
  CHECK(forward_only(2, 2) == PipelinePlan{compute_list(0, "F0 F1"), compute_list(1, "F0 F1")});
}

TEST_CASE("make_plan chooses by kind, and every size is legal") {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int m = 1; m <= 16; ++m) {
      CHECK(make_plan(ScheduleKind::kGPipe, stages, m) == gpipe(stages, m));
      CHECK(make_plan(ScheduleKind::k1F1B, stages, m) == one_forward_one_backward(stages, m));
      for (int s = 0; s < stages; ++s) {
        CHECK(max_in_flight(gpipe(stages, m)[static_cast<size_t>(s)]) == m);
        CHECK(max_in_flight(one_forward_one_backward(stages, m)[static_cast<size_t>(s)]) == std::min(m, stages - s));
      }
    }
  }
  CHECK_THROWS_AS(gpipe(0, 1), InternalError);
  CHECK_THROWS_AS(one_forward_one_backward(1, 0), InternalError);
  CHECK(std::string(name_of(ScheduleKind::k1F1B)) == "1f1b");
  CHECK(std::string(name_of(ScheduleKind::kGPipe)) == "gpipe");
}

TEST_CASE("stages live where their compute is") {
  CHECK(stage_ranks(one_forward_one_backward(3, 2)) == std::vector<int>{0, 1, 2});
  ActionList ends = compute_list(0, "F0");
  ends.push_back({ActionType::kForward, 3, 0});
  ActionList middle = compute_list(1, "F0");
  middle.push_back({ActionType::kForward, 2, 0});
  CHECK(stage_ranks({ends, middle}) == std::vector<int>{0, 1, 1, 0});
  CHECK_THROWS_WITH(stage_ranks({compute_list(0, "F0"), compute_list(2, "F0")}), Catch::Contains("no rank computes stage 1"));
  CHECK_THROWS_WITH(stage_ranks({compute_list(0, "F0"), compute_list(0, "F0")}), Catch::Contains("stage 0 lives on ranks 0 and 1"));
}

TEST_CASE("actions print as their short names and know their other ends") {
  CHECK(to_string(Action{ActionType::kForward, 2, 0}) == "2F0");
  CHECK(to_string(Action{ActionType::kForward, 2, 0, 3}) == "2F0.3");
  CHECK(to_string(Action{ActionType::kUnshard, 2, -1, 5}) == "2UNSHARD5");
  CHECK(to_string(ActionList{{ActionType::kSendForward, 2, 0}, {ActionType::kBackwardInput, 1, 4}}) == "2SEND_F0 1I4");
  std::set<std::string> names;
  for (int type = 0; type <= static_cast<int>(ActionType::kReduceTied); ++type) names.insert(name_of(static_cast<ActionType>(type)));
  CHECK(names.size() == static_cast<size_t>(ActionType::kReduceTied) + 1);
  CHECK(to_string(counterpart({ActionType::kSendForward, 2, 7})) == "3RECV_F7");
  CHECK(to_string(counterpart({ActionType::kRecvForward, 3, 7})) == "2SEND_F7");
  CHECK(to_string(counterpart({ActionType::kSendBackward, 3, 7})) == "2RECV_B7");
  CHECK(to_string(counterpart({ActionType::kRecvBackward, 2, 7})) == "3SEND_B7");
  CHECK_THROWS_AS(counterpart({ActionType::kForward, 0, 0}), InternalError);
}
