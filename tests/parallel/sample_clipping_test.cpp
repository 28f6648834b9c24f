// Schedules in which each sample's gradient is clipped between I and W.
#include <set>

#include "parallel/pipeline/simulate.h"
#include "parallel/pipeline/validate.h"
#include "parallel/pipeline/world.h"
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

TEST_CASE("sample clipping: CLIP follows every I of a micro-batch, WAIT_CLIP and W follow the first stage's I of it") {
  CHECK(to_string(with_sample_clipping(one_forward_one_backward(1, 2))[0]) == "0F0 0I0 CLIP0 WAIT_CLIP0 0W0 0F1 0I1 CLIP1 WAIT_CLIP1 0W1");
  const ActionLists two = with_sample_clipping(one_forward_one_backward(2, 3));
  CHECK(to_string(two[0]) == "0F0 0F1 0I0 CLIP0 WAIT_CLIP0 0W0 0F2 0I1 CLIP1 WAIT_CLIP1 0W1 0I2 CLIP2 WAIT_CLIP2 0W2");
  CHECK(to_string(two[1]) == "1F0 1I0 CLIP0 1F1 1I1 CLIP1 WAIT_CLIP0 1W0 1F2 1I2 CLIP2 WAIT_CLIP1 1W1 WAIT_CLIP2 1W2");
  const ActionLists virtual_stages = with_sample_clipping(zb_v(2, 1));
  CHECK(to_string(virtual_stages[0]) == "0F0 3F0 3I0 0I0 CLIP0 WAIT_CLIP0 3W0 0W0");
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
            const ActionLists lists = lower(with_sample_clipping(make_schedule(kind, ranks, v, microbatches)), units,
                                            {.unshard_each_use = each, .reduce_each_microbatch = each, .receive_ahead = ahead});
            CHECK(validate(lists, {.pipeline = ranks, .shard = 2, .tensor = 2}, units, microbatches, true) == std::vector<std::string>());
            for (const ActionList& list : lists) {
              CHECK(count(list, ActionType::kClipSamples) == microbatches);
              CHECK(count(list, ActionType::kWaitClip) == microbatches);
              CHECK(count(list, ActionType::kBackward) == 0);
            }
            for (const int skipped : {1, microbatches - 1}) {
              if (skipped >= microbatches || each) continue;
              ActionLists fewer;
              for (const ActionList& list : lists) fewer.push_back(without_first(list, skipped));
              CHECK(validate(fewer, {.pipeline = ranks}, units, microbatches - skipped, true) == std::vector<std::string>());
            }
          }
}

TEST_CASE("sample clipping: data ranks with different numbers of micro-batches meet in the same collectives") {
  for (const ScheduleKind kind : kScheduleKinds)
    for (const int ranks : {1, 2, 3})
      for (const bool each : {false, true}) {
        CAPTURE(name_of(kind), ranks, each);
        const int v = default_virtual_stages(kind);
        const std::vector<StageUnits> units = units_of(ranks * v, true, ends_meet(kind, ranks));
        const ActionLists longest =
            lower(with_sample_clipping(make_schedule(kind, ranks, v, 6)), units, {.unshard_each_use = each, .reduce_each_microbatch = each});
        const MeshShape mesh{.pipeline = ranks, .replicate = 2, .shard = 2};
        ActionLists lists;
        for (int rank = 0; rank < mesh.world(); ++rank) {
          const MeshCoordinate at = coordinate_of(mesh, rank);
          lists.push_back(without_first(longest[static_cast<size_t>(at.pipeline)], at.replicate + 2 * at.shard));
        }
        WorldCosts costs;
        costs.seconds = [](const Action&) { return 1.0; };
        costs.collective = [](const Action&) { return 0.0; };
        CHECK_NOTHROW(simulate_world(lists_of_ranks(lists, mesh), mesh, units, costs, {}));
      }
}

TEST_CASE("sample clipping: the proof finds ranks of a pipeline that clip micro-batches in different orders") {
  const std::vector<StageUnits> units = units_of(2, false, false);
  ActionLists lists = lower(with_sample_clipping(gpipe(2, 2)), units, {});
  REQUIRE(validate(lists, {.pipeline = 2}, units, 2, true).empty());
  const auto clip = [&](int microbatch) {
    return std::ranges::find_if(lists[1], [&](const Action& a) { return a.type == ActionType::kClipSamples && a.microbatch == microbatch; });
  };
  const Action first = *clip(0);
  lists[1].erase(clip(0));
  lists[1].insert(clip(1) + 1, first);
  const std::vector<std::string> found = validate(lists, {.pipeline = 2}, units, 2, true);
  CHECK(
      std::ranges::any_of(found, [](const std::string& text) { return text.find("where a rank of its pipeline is at CLIP") != std::string::npos; }));
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

TEST_CASE("sample clipping: the validator finds a missing, an early and a repeated CLIP or WAIT_CLIP") {
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
  CHECK(errors(list).find("WAIT_CLIP0 comes before CLIP") != std::string::npos);
  list = good;
  list.erase(std::ranges::find(list, ActionType::kWaitClip, &Action::type));
  CHECK(errors(list).find("W0.3 runs before the norms of the micro-batch's samples are known") != std::string::npos);
  list = good;
  list.insert(list.begin() + clip + 2, {ActionType::kWaitClip, -1, 0});
  CHECK(errors(list).find("WAIT_CLIP0 occurs twice") != std::string::npos);
  list = good;
  std::rotate(list.begin() + clip - 1, list.begin() + clip, list.begin() + clip + 1);
  CHECK(errors(list).find("CLIP0 comes before the input gradients of stage 0") != std::string::npos);
  list = good;
  list.insert(list.begin() + clip, good[static_cast<size_t>(clip)]);
  CHECK(errors(list).find("CLIP0 occurs twice") != std::string::npos);
}

TEST_CASE("sample clipping: in a simulation WAIT_CLIP waits for the last rank's CLIP, and a pipeline stalls no longer than one that defers W") {
  const auto seconds = [](const Action& action) { return is_compute(action.type) ? 1.0 : 0.0; };
  for (const int ranks : {1, 2, 4, 8}) {
    const ActionLists lists = with_sample_clipping(one_forward_one_backward(ranks, 16));
    const Simulation run = simulate(lists, seconds);
    std::vector<double> started(16, 0);
    for (const Timeline& timeline : run.ranks)
      for (const auto& [action, begin, end] : timeline)
        if (action.type == ActionType::kClipSamples)
          started[static_cast<size_t>(action.microbatch)] = std::max(started[static_cast<size_t>(action.microbatch)], end);
    for (const Timeline& timeline : run.ranks)
      for (const auto& [action, begin, end] : timeline)
        if (action.type == ActionType::kWaitClip) CHECK(begin >= started[static_cast<size_t>(action.microbatch)]);
    CAPTURE(ranks);
    CHECK(run.step_seconds <= simulate(zb_h1(ranks, 16), seconds).step_seconds + 2 * (ranks - 1));

    // The simulation of a whole world has the same times.
    const std::vector<StageUnits> units = toy_units(ranks, 1, false);
    const ActionLists lowered = lower(lists, units, {});
    WorldCosts costs;
    costs.seconds = seconds;
    costs.collective = [](const Action&) { return 0.0; };
    const MeshShape mesh{.pipeline = ranks};
    CHECK(simulate_world(lists_of_ranks(lowered, mesh), mesh, units, costs, {}).step_seconds == Approx(simulate(lowered, seconds).barrier_seconds));
  }
}

}  // namespace trireme::test
