#include "parallel/pipeline/step_times.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// Times are whole numbers of ticks, so that sums are exact and equal shifts compare equal.
using Ticks = int64_t;
constexpr Ticks kNever = -1;

struct StageTicks {
  Ticks forward, input_gradient, weight_gradient, transfer;
};

/// One simulation of compute-only lists. Ranks advance along their lists from a work queue, each until it needs what has not been computed yet.
class TickSimulation {
 public:
  TickSimulation(const ActionLists& lists, const std::vector<int>& stage_rank, std::vector<StageTicks> stages, int microbatches);

  struct Rank {
    Ticks begin = 0, end = kNever;  ///< begin of its first and end of its last compute that takes time
  };
  const std::vector<Rank>& ranks() const { return ranks_; }
  int64_t actions() const { return actions_; }

  struct Period {
    int microbatches;
    Ticks ticks;
  };
  /// The shortest period of all times that is a multiple of `period_microbatches`, the period of the lists, and holds from micro-batch `first` on.
  std::optional<Period> period(int period_microbatches, int first) const;

 private:
  enum Kind { kF, kI, kW, kKinds };
  Ticks& end(Kind kind, int stage, int microbatch) { return ends_[index(kind, stage, microbatch)]; }
  size_t index(Kind kind, int stage, int microbatch) const {
    return (static_cast<size_t>(microbatch) * static_cast<size_t>(stages()) + static_cast<size_t>(stage)) * kKinds + static_cast<size_t>(kind);
  }
  int stages() const { return static_cast<int>(stage_rank_.size()); }
  void advance(int rank);
  bool compute(int rank, const Action& action);
  std::optional<Ticks> arrival(int rank, Kind kind, int stage, int microbatch);
  void announce(Kind kind, int stage, int microbatch);
  bool wait_for_clip(int rank, int microbatch);
  void reach_clip(int rank, int microbatch);
  bool repeats_earlier(int microbatch, int by, Ticks ticks) const;
  int most_microbatches_apart() const;

  const ActionLists& lists_;
  const std::vector<int>& stage_rank_;
  std::vector<StageTicks> costs_;
  int microbatches_;
  std::vector<Ticks> ends_;  ///< by micro-batch, stage and kind; kNever: not computed
  std::vector<Rank> ranks_;
  std::vector<Ticks> clock_;
  std::vector<size_t> next_, awaited_end_;  ///< by rank: position in its list; index in ends_ of the end it waits for, or kNothing
  std::vector<int> runnable_;
  /// CLIP of a micro-batch, which WAIT_CLIP of every rank waits for.
  struct Meeting {
    size_t arrived = 0;
    Ticks time = 0;
    std::vector<int> waiting;
  };
  std::map<int, Meeting> clips_;
  int64_t actions_ = 0;
};

constexpr size_t kNothing = std::numeric_limits<size_t>::max();

TickSimulation::TickSimulation(const ActionLists& lists, const std::vector<int>& stage_rank, std::vector<StageTicks> stages, int microbatches)
    : lists_(lists),
      stage_rank_(stage_rank),
      costs_(std::move(stages)),
      microbatches_(microbatches),
      ends_(static_cast<size_t>(microbatches) * stage_rank.size() * kKinds, kNever),
      ranks_(lists.size()),
      clock_(lists.size(), 0),
      next_(lists.size(), 0),
      awaited_end_(lists.size(), kNothing) {
  for (size_t rank = lists.size(); rank-- > 0;) {
    runnable_.push_back(static_cast<int>(rank));
    actions_ += static_cast<int64_t>(lists[rank].size());
  }
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    advance(rank);
  }
  for (size_t rank = 0; rank < lists.size(); ++rank)
    if (next_[rank] < lists[rank].size()) throw InternalError(concat("rank ", rank, " is stuck at ", to_string(lists[rank][next_[rank]])));
}

void TickSimulation::advance(int rank) {
  const ActionList& list = lists_[static_cast<size_t>(rank)];
  for (size_t& next = next_[static_cast<size_t>(rank)]; next < list.size(); ++next) {
    const Action& action = list[next];
    if (is_compute(action.type)) {
      if (!compute(rank, action)) return;
    } else if (action.type == ActionType::kClipSamples) {
      reach_clip(rank, action.microbatch);
    } else if (action.type == ActionType::kWaitClip) {
      if (!wait_for_clip(rank, action.microbatch)) return;
    } else {
      throw InternalError("not an action of a compute-only list: " + to_string(action));
    }
  }
}

/// The time at which the input of an action is there; nullopt if the rank has to wait for it.
std::optional<Ticks> TickSimulation::arrival(int rank, Kind kind, int stage, int microbatch) {
  const int from = kind == kF ? stage - 1 : stage + 1;
  if (kind == kW || from < 0 || from == stages()) return 0;
  const size_t at = index(kind, from, microbatch);
  if (ends_[at] == kNever) {
    awaited_end_[static_cast<size_t>(rank)] = at;
    return std::nullopt;
  }
  const bool local = stage_rank_[static_cast<size_t>(from)] == rank;
  return ends_[at] + (local ? 0 : costs_[static_cast<size_t>(std::min(from, stage))].transfer);
}

/// False if the rank has to wait.
bool TickSimulation::compute(int rank, const Action& action) {
  const Kind kind = action.type == ActionType::kForward ? kF : action.type == ActionType::kBackwardWeight ? kW : kI;
  const std::optional<Ticks> input = arrival(rank, kind, action.stage, action.microbatch);
  if (!input) return false;
  const StageTicks& costs = costs_[static_cast<size_t>(action.stage)];
  const Ticks ticks = kind == kF                             ? costs.forward
                      : kind == kW                           ? costs.weight_gradient
                      : action.type == ActionType::kBackward ? costs.input_gradient + costs.weight_gradient
                                                             : costs.input_gradient;
  Ticks& clock = clock_[static_cast<size_t>(rank)];
  Rank& times = ranks_[static_cast<size_t>(rank)];
  const Ticks begin = std::max(clock, *input);
  clock = end(kind, action.stage, action.microbatch) = begin + ticks;
  if (ticks > 0) {
    if (times.end == kNever) times.begin = begin;
    times.end = clock;
  }
  announce(kind, action.stage, action.microbatch);
  return true;
}

/// Wakes the rank that waits for this end.
void TickSimulation::announce(Kind kind, int stage, int microbatch) {
  const int to = kind == kF ? stage + 1 : stage - 1;
  if (kind == kW || to < 0 || to == stages()) return;
  const int rank = stage_rank_[static_cast<size_t>(to)];
  size_t& awaited_end = awaited_end_[static_cast<size_t>(rank)];
  if (awaited_end != index(kind, stage, microbatch)) return;
  awaited_end = kNothing;
  runnable_.push_back(rank);
}

void TickSimulation::reach_clip(int rank, int microbatch) {
  Meeting& clip = clips_[microbatch];
  clip.time = std::max(clip.time, clock_[static_cast<size_t>(rank)]);
  if (++clip.arrived < ranks_.size()) return;
  runnable_.insert(runnable_.end(), clip.waiting.begin(), clip.waiting.end());
  clip.waiting.clear();
}

bool TickSimulation::wait_for_clip(int rank, int microbatch) {
  Meeting& clip = clips_[microbatch];
  if (clip.arrived < ranks_.size()) {
    clip.waiting.push_back(rank);
    return false;
  }
  Ticks& clock = clock_[static_cast<size_t>(rank)];
  clock = std::max(clock, clip.time);
  return true;
}

/// Whether all ends of a micro-batch are those of the one `by` earlier plus `ticks`.
bool TickSimulation::repeats_earlier(int microbatch, int by, Ticks ticks) const {
  const size_t row = static_cast<size_t>(stages()) * kKinds;
  const auto at = ends_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(microbatch) * row);
  return std::equal(at, at + static_cast<std::ptrdiff_t>(row), at - static_cast<std::ptrdiff_t>(static_cast<size_t>(by) * row),
                    [&](Ticks later, Ticks earlier) { return later == kNever ? earlier == kNever : later - earlier == ticks; });
}

/// The largest difference between the micro-batches of two neighbours of a list. An action depends on no micro-batch that is further away.
int TickSimulation::most_microbatches_apart() const {
  int most = 0;
  for (const ActionList& list : lists_)
    for (size_t i = 1; i < list.size(); ++i) most = std::max(most, std::abs(list[i].microbatch - list[i - 1].microbatch));
  return most;
}

/// The last micro-batches run without further forwards, the first ones without backwards; the period has to hold between these.
std::optional<TickSimulation::Period> TickSimulation::period(int period_microbatches, int first) const {
  const int window = most_microbatches_apart() + 1;  // if that many micro-batches in a row repeat earlier ones, then all later ones do
  const int last = microbatches_ - 1 - 2 * window;
  for (int by = period_microbatches; last - window - by >= first + window; by += period_microbatches) {
    const Ticks ticks = ends_[index(kF, 0, last)] - ends_[index(kF, 0, last - by)];
    bool all = true;
    for (int microbatch = last; all && microbatch > last - window; --microbatch) all = repeats_earlier(microbatch, by, ticks);
    if (all) return Period{by, ticks};
  }
  return std::nullopt;
}

/// Converts times to ticks such that a step of `microbatches` cannot overflow: not even if no two actions overlap.
class TickScale {
 public:
  TickScale(const std::vector<StageTimes>& stages, double microbatches) {
    double all = 0;
    for (const StageTimes& stage : stages) all += stage.forward + stage.input_gradient + stage.weight_gradient + 2 * stage.transfer;
    constexpr int kBits = 61;
    // The scale must not be 0: neither for a step that takes no time, nor by underflow.
    seconds_ = std::max(std::ldexp(all * microbatches, -kBits), std::numeric_limits<double>::denorm_min());
  }
  Ticks ticks(double seconds) const { return std::llround(seconds / seconds_); }
  double seconds(Ticks ticks) const { return static_cast<double>(ticks) * seconds_; }
  std::vector<StageTicks> ticks(const std::vector<StageTimes>& stages) const {
    std::vector<StageTicks> all;
    for (const StageTimes& stage : stages)
      all.push_back({ticks(stage.forward), ticks(stage.input_gradient), ticks(stage.weight_gradient), ticks(stage.transfer)});
    return all;
  }

 private:
  double seconds_;
};

/// The times of a schedule in which `added` seconds of whole periods precede the last micro-batches.
void set_times(StepTimes& times, const TickSimulation& run, const TickScale& scale, double added) {
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (const TickSimulation::Rank& rank : run.ranks()) {
    StepTimes::Rank& seconds = times.ranks.emplace_back();
    if (rank.end == kNever) continue;
    seconds = {.begin = scale.seconds(rank.begin), .end = scale.seconds(rank.end) + added};
    first = std::min(first, seconds.begin);
    last = std::max(last, seconds.end);
  }
  times.barrier_seconds = std::max(0.0, last - first);
}

}  // namespace

const ActionLists& StepSchedule::lists(int microbatches) {
  const auto [at, added] = known_.try_emplace(microbatches);
  if (added) at->second = lists_(microbatches);
  return at->second;
}

const std::vector<int>& StepSchedule::stage_ranks() {
  if (stage_ranks_.empty()) stage_ranks_ = trireme::stage_ranks(lists(period_.microbatches > 0 ? 1 : microbatches_));
  return stage_ranks_;
}

StepTimes step_times(StepSchedule& schedule, const std::vector<StageTimes>& stages) {
  const int period_microbatches = schedule.period().microbatches, irregular = schedule.period().irregular;
  const int all = schedule.microbatches();
  const std::vector<int>& stage_rank = schedule.stage_ranks();
  TRIREME_CHECK(stage_rank.size() == stages.size(), stage_rank.size(), " stages, ", stages.size(), " costs");
  StepTimes times;
  const auto simulated = [&](const TickScale& scale, int microbatches) {
    TickSimulation run(schedule.lists(microbatches), stage_rank, scale.ticks(stages), microbatches);
    times.simulated += run.actions();
    return run;
  };
  // A shorter schedule has as many micro-batches as the whole one but for a multiple of the period of the lists.
  const auto at_least = [&](int64_t count) {
    return period_microbatches == 0 ? all : count + (all - count % period_microbatches) % period_microbatches;
  };
  // Up to two times as many micro-batches as ranks are in flight; a period is looked for in the middle of five times as many.
  for (int64_t microbatches = at_least(irregular + 10 * (std::ranges::max(stage_rank) + 1) + 8);; microbatches = at_least(2 * microbatches)) {
    if (2 * microbatches > all) {
      const TickScale scale(stages, all);
      set_times(times, simulated(scale, all), scale, 0);
      break;
    }
    const TickScale scale(stages, 2.0 * static_cast<double>(microbatches));
    const TickSimulation run = simulated(scale, static_cast<int>(microbatches));
    const std::optional<TickSimulation::Period> period = run.period(period_microbatches, irregular);
    if (!period) continue;
    // Whole periods are added to the times. What is left of one is simulated.
    const int64_t rest = (all - microbatches) % period->microbatches, periods = (all - microbatches) / period->microbatches;
    const double added = static_cast<double>(periods) * scale.seconds(period->ticks);
    set_times(times, rest == 0 ? run : simulated(scale, static_cast<int>(microbatches + rest)), scale, added);
    break;
  }
  return times;
}

}  // namespace trireme
