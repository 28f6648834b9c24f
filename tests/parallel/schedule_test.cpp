#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/core/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

using namespace trireme;
using test::compute_list;
using test::one_stage_each;

TEST_CASE("1F1B of four stages and eight micro-batches is the published figure") {
  const ActionLists lists = one_forward_one_backward(4, 8);
  REQUIRE(lists.size() == 4);
  CHECK(lists[0] == compute_list(0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"));
  CHECK(lists[1] == compute_list(1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"));
  CHECK(lists[2] == compute_list(2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"));
  CHECK(lists[3] == compute_list(3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"));
}

TEST_CASE("1F1B with fewer micro-batches than stages, and on one stage") {
  CHECK(one_forward_one_backward(4, 2) ==
        ActionLists{compute_list(0, "F0 F1 B0 B1"), compute_list(1, "F0 F1 B0 B1"), compute_list(2, "F0 F1 B0 B1"), compute_list(3, "F0 B0 F1 B1")});
  CHECK(one_forward_one_backward(3, 1) == ActionLists{compute_list(0, "F0 B0"), compute_list(1, "F0 B0"), compute_list(2, "F0 B0")});
  CHECK(one_forward_one_backward(1, 3) == ActionLists{compute_list(0, "F0 B0 F1 B1 F2 B2")});
}

TEST_CASE("GPipe does all forwards, then all backwards in the same order") {
  CHECK(gpipe(2, 3) == ActionLists{compute_list(0, "F0 F1 F2 B0 B1 B2"), compute_list(1, "F0 F1 F2 B0 B1 B2")});
  const ActionLists lists = gpipe(4, 8);
  REQUIRE(lists.size() == 4);
  for (int s = 0; s < 4; ++s) CHECK(lists[static_cast<size_t>(s)] == compute_list(s, "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7"));
  CHECK(forward_only(one_stage_each(2), 2) == ActionLists{compute_list(0, "F0 F1"), compute_list(1, "F0 F1")});
}

TEST_CASE("interleaved 1F1B of four ranks, two virtual stages and eight micro-batches is the published figure") {
  const ActionLists lists = interleaved_1f1b(4, 2, 8);
  REQUIRE(lists.size() == 4);
  CHECK(to_string(lists[0]) ==
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7");
  CHECK(to_string(lists[3]) ==
        "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7");
}

TEST_CASE("interleaved 1F1B of five micro-batches on two ranks has groups of three and two") {
  const ActionLists lists = interleaved_1f1b(2, 2, 5);
  CHECK(to_string(lists[0]) == "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4");
  CHECK(to_string(lists[1]) == "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4");
  CHECK(interleaved_1f1b(4, 1, 6) == one_forward_one_backward(4, 6));
}

TEST_CASE("the exact zero-bubble lists") {
  CHECK(zb_h1(2, 3) == ActionLists{compute_list(0, "F0 F1 I0 W0 F2 I1 W1 I2 W2"), compute_list(1, "F0 I0 F1 I1 W0 F2 I2 W1 W2")});
  CHECK(zb_h2(2, 4) == ActionLists{compute_list(0, "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"), compute_list(1, "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3")});
  const ActionLists vee = zb_v(2, 3);
  REQUIRE(vee.size() == 2);
  CHECK(to_string(vee[0]) == "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2");
  CHECK(to_string(vee[1]) == "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2");
  CHECK(to_text(zb_v(3, 1)) == "0F0 5F0 5I0 5W0 0I0 0W0\n1F0 4F0 4I0 4W0 1I0 1W0\n2F0 3F0 3I0 3W0 2I0 2W0\n");
}

TEST_CASE("every size of every kind is legal, and each stage does its micro-batches in order") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int v = 1; v <= 4; ++v) {
        if (!allows_virtual_stages(kind, v)) continue;
        for (int m = 1; m <= 20; ++m) {
          const ActionLists lists = make_schedule(kind, ranks, v, m);
          REQUIRE(lists.size() == static_cast<size_t>(ranks));
          REQUIRE(stage_ranks(lists).size() == static_cast<size_t>(ranks * v));
          std::map<std::pair<ActionType, int>, int> done;
          bool ascending = true;
          for (const ActionList& list : lists)
            for (const Action& action : list) ascending = ascending && done[{action.type, action.stage}]++ == action.microbatch;
          const bool split = kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbH2 || kind == ScheduleKind::kZbV;
          CAPTURE(name_of(kind), ranks, v, m);
          CHECK(ascending);
          CHECK(done.size() == static_cast<size_t>(ranks * v) * (split ? 3 : 2));
          CHECK(std::ranges::all_of(done, [m](const auto& entry) { return entry.second == m; }));
        }
      }
    }
  }
  CHECK_THROWS_AS(gpipe(0, 1), InternalError);
  CHECK_THROWS_AS(one_forward_one_backward(1, 0), InternalError);
  CHECK_THROWS_AS(interleaved_1f1b(2, 0, 1), InternalError);
  CHECK_THROWS_AS(zb_h2(2, 0), InternalError);
  CHECK_THROWS_WITH(make_schedule(ScheduleKind::kZbH1, 2, 2, 1), Catch::Contains("zb_h1 does not support 2 virtual stages"));
  CHECK_THROWS_WITH(make_schedule(ScheduleKind::kZbV, 2, 1, 1), Catch::Contains("zb_v does not support 1 virtual stages"));
}

TEST_CASE("interleaved and V schedules place stages as in the papers") {
  CHECK(stage_ranks(interleaved_1f1b(3, 2, 1)) == std::vector<int>{0, 1, 2, 0, 1, 2});
  CHECK(stage_ranks(zb_v(3, 1)) == std::vector<int>{0, 1, 2, 2, 1, 0});
}

TEST_CASE("the forwards before a rank's first backward are those of its list") {
  for (const ScheduleKind kind : kScheduleKinds)
    for (const int virtual_stages : {default_virtual_stages(kind), 3, 7})
      for (int ranks = 1; allows_virtual_stages(kind, virtual_stages) && ranks <= 6; ++ranks)
        for (int microbatches = 1; microbatches <= 40; ++microbatches) {
          std::vector<int> counted(static_cast<size_t>(ranks * virtual_stages), 0);
          for (const ActionList& list : make_schedule(kind, ranks, virtual_stages, microbatches))
            for (auto action = list.begin(); action->type == ActionType::kForward; ++action) ++counted[static_cast<size_t>(action->stage)];
          CAPTURE(name_of(kind), ranks, virtual_stages, microbatches);
          REQUIRE(forwards_before_backward(kind, ranks, virtual_stages, microbatches) == counted);
        }
}

TEST_CASE("forwards of virtual stages overlap between ranks") {
  const ActionLists looped = forward_only({0, 1, 0, 1}, 3);
  CHECK(to_text(looped) == "0F0 0F1 2F0 2F1 0F2 2F2\n1F0 1F1 3F0 3F1 1F2 3F2\n");
  for (const std::vector<int>& where : {std::vector{0, 1, 2, 0, 1, 2}, std::vector{0, 1, 2, 2, 1, 0}, std::vector{0, 0, 1, 1}}) {
    const ActionLists lists = forward_only(where, 12);
    const int ranks = static_cast<int>(lists.size()), work = 12 * static_cast<int>(where.size()) / ranks;
    CHECK(stage_ranks(lists) == where);
    // No rank idles for longer than a micro-batch takes through all stages.
    CHECK(simulate(lists, [](const Action& a) { return is_compute(a.type) ? 1.0 : 0.0; }).step_seconds < work + static_cast<int>(where.size()));
  }
}

TEST_CASE("parse_schedule reads the text of to_text back") {
  for (const ScheduleKind kind : kScheduleKinds) {
    const ActionLists lists = make_schedule(kind, 3, default_virtual_stages(kind), 12);
    CHECK(parse_schedule(to_text(lists)) == lists);
  }
  CHECK(parse_schedule("# two ranks\n\n 0F0\t0F1 0B0 0B1  # the first\r\n\n1F0 1I0 1W0 1F1 1B1") ==
        ActionLists{compute_list(0, "F0 F1 B0 B1"), compute_list(1, "F0 I0 W0 F1 B1")});
  CHECK(parse_schedule("# nothing\n").empty());
}

TEST_CASE("an invalid schedule text is refused with line and word") {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_schedule(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refused("0F0 0B0\n# more\n1F0 1G0") == "line 3, word 2, 1G0: invalid action; write stage, F, B, I or W, and micro-batch, such as 0F0");
  for (const std::string word :
       {"F0", "0F", "0F0.1", "0FF0", "-1F0", "0F-1", "0F0x", "0SEND_F0", "0UNSHARD1", "1234567F0", "0F99999999999", "+0F0", "0f0", "0x1F0"})
    CHECK_THAT(refused("0F0 " + word), Catch::StartsWith("line 1, word 2, " + word + ": invalid action"));
  CHECK(refused("0F0 0B0\n1F0 0F1") == "line 2, word 2, 0F1: stage 0 is already on line 1; a stage runs on one rank only");
  CHECK(refused("0F0 0F1 0F0") == "line 1, word 3, 0F0: duplicate action");
  CHECK(refused("0F0 0B0 0B0") == "line 1, word 3, 0B0: duplicate action (B includes I and W)");
  CHECK(refused("0F0 0I0 0B0") == "line 1, word 3, 0B0: duplicate action (B includes I and W)");
  CHECK(refused("0F0 0B0 0W0") == "line 1, word 3, 0W0: duplicate action");
}

TEST_CASE("stage_ranks finds the rank that computes each stage") {
  CHECK(stage_ranks(one_forward_one_backward(3, 2)) == std::vector<int>{0, 1, 2});
  ActionList ends = compute_list(0, "F0");
  ends.push_back({ActionType::kForward, 3, 0});
  ActionList middle = compute_list(1, "F0");
  middle.push_back({ActionType::kForward, 2, 0});
  CHECK(stage_ranks({ends, middle}) == std::vector<int>{0, 1, 1, 0});
  CHECK_THROWS_WITH(stage_ranks({compute_list(0, "F0"), compute_list(2, "F0")}), Catch::Contains("no rank computes stage 1"));
  CHECK_THROWS_WITH(stage_ranks({compute_list(0, "F0"), compute_list(0, "F0")}), Catch::Contains("stage 0 is assigned to ranks 0 and 1"));
}

TEST_CASE("actions print as their short names, and transfers have counterparts") {
  CHECK(to_string(Action{ActionType::kForward, 2, 0}) == "2F0");
  CHECK(to_string(Action{ActionType::kForward, 2, 0, -1, 3}) == "2F0.3");
  CHECK(to_string(Action{ActionType::kUnshard, 2, -1, 5}) == "2UNSHARD5");
  CHECK(to_string(ActionList{{ActionType::kSendForward, 2, 0}, {ActionType::kBackwardInput, 1, 4}}) == "2SEND_F0 1I4");
  std::set<std::string> names;
  CHECK(to_string(Action{ActionType::kNorm}) == "NORM");
  for (int type = 0; type <= static_cast<int>(ActionType::kUpdate); ++type) names.insert(name_of(static_cast<ActionType>(type)));
  CHECK(names.size() == static_cast<size_t>(ActionType::kUpdate) + 1);
  CHECK(to_string(counterpart({ActionType::kSendForward, 2, 7})) == "3RECV_F7");
  CHECK(to_string(counterpart({ActionType::kRecvForward, 3, 7})) == "2SEND_F7");
  CHECK(to_string(counterpart({ActionType::kSendBackward, 3, 7})) == "2RECV_B7");
  CHECK(to_string(counterpart({ActionType::kRecvBackward, 2, 7})) == "3SEND_B7");
  CHECK_THROWS_AS(counterpart({ActionType::kForward, 0, 0}), InternalError);
}
