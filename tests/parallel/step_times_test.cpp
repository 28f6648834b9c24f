// The times of long schedules by extrapolation equal those of the full simulation.
#include "parallel/pipeline/step_times.h"

#include <random>

#include "kernels/core/check.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

struct Request {
  ScheduleKind kind;
  int ranks, virtual_stages, microbatches;
  std::vector<StageTimes> stages;
};

StepSchedule schedule_of(const Request& r, bool clips = false) {
  return StepSchedule(
      [=](int count) {
        const ActionLists lists = make_schedule(r.kind, r.ranks, r.virtual_stages, count);
        return clips ? with_sample_clipping(lists) : lists;
      },
      r.microbatches, period_of(r.kind, r.ranks, r.virtual_stages, r.microbatches));
}

double seconds_of(const Request& r, const Action& action) {
  const StageTimes& stage = r.stages[static_cast<size_t>(std::max(action.stage, 0))];
  switch (action.type) {
    case ActionType::kForward: return stage.forward;
    case ActionType::kBackward: return stage.input_gradient + stage.weight_gradient;
    case ActionType::kBackwardInput: return stage.input_gradient;
    case ActionType::kBackwardWeight: return stage.weight_gradient;
    case ActionType::kRecvForward: return r.stages[static_cast<size_t>(action.stage) - 1].transfer;
    case ActionType::kRecvBackward: return stage.transfer;
    default: return 0;
  }
}

/// Compares with the whole simulation, and returns the number of actions that were simulated and that there are.
std::pair<int64_t, int64_t> compare(const Request& r, bool clips = false) {
  CAPTURE(name_of(r.kind), r.ranks, r.virtual_stages, r.microbatches, clips);
  StepSchedule schedule = schedule_of(r, clips);
  const StepTimes times = step_times(schedule, r.stages);
  const Simulation whole = simulate(schedule_of(r, clips).lists(r.microbatches), [&](const Action& action) { return seconds_of(r, action); });
  const auto same = [&](double value) { return Approx(value).epsilon(1e-12).margin(1e-12 * whole.step_seconds); };
  CHECK(times.barrier_seconds == same(whole.barrier_seconds));
  REQUIRE(times.ranks.size() == whole.ranks.size());
  int64_t actions = 0;
  for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
    double begin = -1;
    for (const TimelineEvent& event : whole.ranks[rank])
      if (begin < 0 && event.end > event.begin) begin = event.begin;
    CHECK(times.ranks[rank].begin == same(begin));
    CHECK(times.ranks[rank].end == same(whole.ranks[rank].back().end));
    actions += std::ssize(whole.ranks[rank]);
  }
  return {times.simulated, actions};
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int whole(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  double real(double from, double to) { return std::uniform_real_distribution<double>(from, to)(random_); }
  /// Equal stages but for the ends, or uneven ones; transfers that are free, short or longer than compute.
  std::vector<StageTimes> stages(int count) {
    const int transfers = whole(0, 2), unevenness = whole(0, 3);
    const double transfer = transfers == 0 ? 0 : transfers == 1 ? real(0, 0.2) : real(1, 8);
    const StageTimes plain{real(0.5, 1.5), real(0.5, 1.5), real(0.5, 1.5), transfer};
    std::vector<StageTimes> all(static_cast<size_t>(count), plain);
    for (StageTimes& stage : all) {
      const double factor = unevenness == 0 ? 1 : unevenness == 1 ? real(0.99, 1.01) : unevenness == 2 ? real(0.5, 2) : 1;
      stage.forward *= factor, stage.input_gradient *= factor, stage.weight_gradient *= factor;
      if (unevenness == 2) stage.transfer *= real(0, 2);
    }
    if (unevenness == 3) all.back().input_gradient += real(0, 1), all.front().forward += real(0, 0.1);
    return all;
  }
  Request request(ScheduleKind kind, int most_ranks, int most_microbatches) {
    const int ranks = whole(1, most_ranks);
    const int stages = kind == ScheduleKind::kInterleaved1F1B ? whole(1, 8) : default_virtual_stages(kind);
    return {kind, ranks, stages, whole(1, most_microbatches), this->stages(ranks * stages)};
  }

 private:
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("times by extrapolation equal those of the whole simulation") {
  Draw draw(1580);
  for (const ScheduleKind kind : kScheduleKinds) {
    int extrapolated = 0, long_ones = 0;
    for (int i = 0; i < 60; ++i) {
      const Request request = draw.request(kind, i < 50 ? 9 : 64, i < 50 ? 1500 : 3000);
      const auto [simulated, actions] = compare(request);
      if (request.microbatches < 60 * request.ranks) continue;
      ++long_ones;
      extrapolated += simulated < actions ? 1 : 0;
    }
    CAPTURE(name_of(kind), extrapolated, long_ones);
    CHECK(long_ones >= 30);
    CHECK((kind == ScheduleKind::kGPipe ? extrapolated == 0 : extrapolated >= 3 * long_ones / 4));
  }
}

TEST_CASE("times by extrapolation equal those of the whole simulation: clipping of samples") {
  Draw draw(1581);
  for (const ScheduleKind kind : kScheduleKinds)
    for (int i = 0; i < 15; ++i) compare(draw.request(kind, 9, 1000), true);
}

TEST_CASE("the number of simulated actions does not grow with the number of micro-batches") {
  Draw draw(1582);
  for (const ScheduleKind kind : kScheduleKinds) {
    if (kind == ScheduleKind::kGPipe) continue;
    const int ranks = 64, stages = default_virtual_stages(kind);
    Request request{kind, ranks, stages, 0, draw.stages(ranks * stages)};
    for (StageTimes& stage : request.stages) stage = {1, 1.1, 0.9, 0.3};
    request.stages.back().input_gradient = 1.7;
    const auto simulated = [&](int microbatches) {
      request.microbatches = microbatches;
      StepSchedule schedule = schedule_of(request);
      return step_times(schedule, request.stages).simulated;
    };
    CAPTURE(name_of(kind));
    const int64_t few = simulated(64 * 100);
    CHECK(simulated(64 * 100'000) == few);
    CHECK(few < int64_t{64} * 100 * ranks * stages);  // half of the forwards and backwards of the shorter one
  }
}

TEST_CASE("a bottleneck whose queue fills slowly is not taken for a period") {
  // The last rank is slower by a thousandth, so that the ranks before it run ahead of it for hundreds of micro-batches.
  std::vector<StageTimes> stages(8, StageTimes{1, 1, 1, 0.1});
  stages.back().forward = 1.003;
  for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZbH1, ScheduleKind::kZbH2})
    for (const int microbatches : {500, 2000, 20000}) compare({kind, 8, 1, microbatches, stages});
}

TEST_CASE("long transfers have a period of several micro-batches") {
  // A micro-batch needs longer to the last rank and back than the ranks need for those in flight, so they come in bursts.
  Draw draw(1583);
  for (int i = 0; i < 20; ++i) {
    std::vector<StageTimes> stages;
    for (int stage = 0; stage < 6; ++stage) stages.push_back({draw.real(0.5, 1), draw.real(0.5, 1), draw.real(0.5, 1), draw.real(2, 5)});
    const auto [simulated, all] = compare({ScheduleKind::k1F1B, 6, 1, 2000 + i, stages});
    CHECK(simulated < all / 2);
  }
}

TEST_CASE("stages that take no time, or hardly any, have the times of the whole simulation") {
  for (const ScheduleKind kind : kScheduleKinds) {
    const int ranks = 4, virtual_stages = default_virtual_stages(kind);
    const auto times_of = [&](double cost) {
      const Request request{kind, ranks, virtual_stages, 500,
                            std::vector<StageTimes>(static_cast<size_t>(ranks * virtual_stages), {cost, cost, cost, cost})};
      StepSchedule schedule = schedule_of(request);
      return step_times(schedule, request.stages);
    };
    CAPTURE(name_of(kind));
    const StepTimes none = times_of(0), tiny = times_of(1e-310), plain = times_of(1);
    REQUIRE(none.ranks.size() == ranks);
    CHECK(none.barrier_seconds == 0);
    for (const StepTimes::Rank& rank : none.ranks) CHECK((rank.begin == 0 && rank.end == 0));
    CHECK(tiny.barrier_seconds * 1e300 * 1e10 == Approx(plain.barrier_seconds).epsilon(1e-6));
  }
}

TEST_CASE("a list that cannot run is refused, with the rank and the action") {
  StepSchedule schedule(
      [](int) {
        return ActionLists{{{ActionType::kBackward, 0, 0}, {ActionType::kForward, 0, 0}},
                           {{ActionType::kForward, 1, 0}, {ActionType::kBackward, 1, 0}}};
      },
      1, {});
  CHECK_THROWS_WITH(step_times(schedule, std::vector<StageTimes>(2)), Catch::Contains("is stuck at"));
}
