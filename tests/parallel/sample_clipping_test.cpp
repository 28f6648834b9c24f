// Schedules in which each sample's gradient is clipped between I and W.
#include <set>

#include "parallel/pipeline/simulate.h"
#include "parallel/pipeline/validate.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

long count(const ActionList& list, ActionType type) { return std::ranges::count(list, type, &Action::type); }

/// The units of a model whose head has a W that reads its parameters.
std::vector<StageUnits> units_of(int stages, bool tied, bool meet) {
  std::vector<StageUnits> units = toy_units(stages, 2, tied, meet);
  units.back().recomputing_part = static_cast<int>(units.back().units_of_part.size()) - 1;
  return units;
}

}  // namespace

TEST_CASE("sample clipping: W of a micro-batch follows CLIP, which follows every I of it") {
  CHECK(to_string(with_sample_clipping(one_forward_one_backward(1, 2))[0]) == "0F0 0I0 CLIP0 0W0 0F1 0I1 CLIP1 0W1");
  const ActionLists two = with_sample_clipping(one_forward_one_backward(2, 3));
  CHECK(to_string(two[0]) == "0F0 0F1 0I0 CLIP0 0W0 0F2 0I1 CLIP1 0W1 0I2 CLIP2 0W2");
  CHECK(to_string(two[1]) == "1F0 1I0 1F1 1I1 CLIP0 1W0 1F2 1I2 CLIP1 1W1 CLIP2 1W2");
}

TEST_CASE("sample clipping: lowered lists of every schedule are complete and free of deadlock") {
  for (const ScheduleKind kind : kScheduleKinds)
    for (const int ranks : {1, 2, 3, 4})
      for (const int microbatches : {1, 2, 3, 7, 12})
        for (const bool each : {false, true})
          for (const bool ahead : {false, true}) {
            CAPTURE(name_of(kind), ranks, microbatches, each, ahead);
            const int v = default_virtual_stages(kind);
            const bool meet = ends_meet(kind, ranks);
            const std::vector<StageUnits> units = units_of(ranks * v, true, meet);
            const ActionLists lists =
                lower(with_sample_clipping(make_schedule(kind, ranks, v, microbatches)), units,
                      {.unshard_each_use = each, .reduce_each_microbatch = each, .receive_ahead = ahead});
            CHECK(validate(lists, {.pipeline = ranks, .shard = 2, .tensor = 2}, units, microbatches, true) == std::vector<std::string>());
            for (const ActionList& list : lists) {
              CHECK(count(list, ActionType::kClipSamples) == microbatches);
              CHECK(count(list, ActionType::kBackward) == 0);
            }
            for (const int skipped : {1, microbatches - 1}) {
              if (skipped >= microbatches) continue;
              ActionLists fewer;
              for (const ActionList& list : lists) fewer.push_back(without_first(list, skipped));
              CHECK(validate(fewer, {.pipeline = ranks}, units, microbatches - skipped, true) == std::vector<std::string>());
            }
          }
}

TEST_CASE("sample clipping: a head that computes its logits again gathers its parameters for W") {
  const std::vector<StageUnits> units = units_of(2, false, false);
  const ActionLists lists = lower(with_sample_clipping(one_forward_one_backward(2, 2)), units, {.unshard_each_use = true});
  ActionLists without = lists;
  const int head = static_cast<int>(units.back().units_of_part.size()) - 1;
  for (size_t i = without[1].size(); i-- > 0;)
    if (without[1][i].type == ActionType::kUnshard && without[1][i].unit == head) {
      without[1].erase(without[1].begin() + static_cast<long>(i));
      break;
    }
  const std::vector<std::string> found = validate(without, {.pipeline = 2}, units, 2, true);
  REQUIRE_FALSE(found.empty());
  CHECK(found.front().find("runs before unit") != std::string::npos);
}

TEST_CASE("sample clipping: the validator finds a missing, an early and a repeated CLIP") {
  const std::vector<StageUnits> units = units_of(1, false, true);
  const auto errors = [&](const ActionList& list) {
    const std::vector<std::string> found = validate({list}, {}, units, 2, true);
    return found.empty() ? "" : found.front();
  };
  const ActionList good = lower(with_sample_clipping(one_forward_one_backward(1, 2)), units, {})[0];
  REQUIRE(errors(good) == "");
  const auto clip = std::ranges::find(good, ActionType::kClipSamples, &Action::type) - good.begin();
  ActionList list = good;
  list.erase(list.begin() + clip);
  CHECK(errors(list).find("W0.3 runs before the micro-batch's samples are clipped") != std::string::npos);
  list = good;
  std::rotate(list.begin() + clip - 1, list.begin() + clip, list.begin() + clip + 1);
  CHECK(errors(list).find("CLIP0 comes before the input gradients of stage 0") != std::string::npos);
  list = good;
  list.insert(list.begin() + clip, good[static_cast<size_t>(clip)]);
  CHECK(errors(list).find("CLIP0 occurs twice") != std::string::npos);
}

TEST_CASE("sample clipping: CLIP makes ranks wait for the last one's input gradient in a simulation") {
  const auto seconds = [](const Action& action) { return action.type == ActionType::kClipSamples ? 0.0 : 1.0; };
  for (const int ranks : {1, 2, 4}) {
    const ActionLists lists = with_sample_clipping(one_forward_one_backward(ranks, 8));
    const Simulation run = simulate(lists, seconds);
    std::vector<double> clipped(8, -1);
    for (const Timeline& timeline : run.ranks)
      for (const TimelineEvent& event : timeline) {
        if (event.action.type != ActionType::kClipSamples) continue;
        double& time = clipped[static_cast<size_t>(event.action.microbatch)];
        CHECK((time < 0 || time == event.end));
        time = event.end;
      }
    // Placed where the first rank's I ends: the step takes as long as one with F, I and W in a zero-bubble order, give or take the last micro-batches.
    CHECK(run.step_seconds <= 3 * 8 + 3 * (ranks - 1));
  }
}

}  // namespace trireme::test
