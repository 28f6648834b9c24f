#pragma once
// The times of a step of one pipeline without its timelines, for any number of micro-batches. A long schedule is not simulated to its end: its times
// become periodic, and a shorter schedule then determines them exactly.
#include <functional>
#include <map>
#include <vector>

#include "parallel/pipeline/action.h"
#include "parallel/pipeline/schedule.h"

namespace trireme {

/// Seconds of one micro-batch in a stage.
struct StageTimes {
  double forward = 0, input_gradient = 0, weight_gradient = 0;
  double transfer = 0;  ///< to or from the next stage; not used if that is on the same rank
};

/// The compute-only lists of a step, for different numbers of micro-batches. Each list is generated once.
class StepSchedule {
 public:
  using Lists = std::function<ActionLists(int microbatches)>;
  StepSchedule(Lists lists, int microbatches, SchedulePeriod period) : lists_(std::move(lists)), microbatches_(microbatches), period_(period) {}
  int microbatches() const { return microbatches_; }
  const SchedulePeriod& period() const { return period_; }
  const ActionLists& lists(int microbatches);
  /// Pipeline rank of each stage.
  const std::vector<int>& stage_ranks();

 private:
  Lists lists_;
  int microbatches_;
  SchedulePeriod period_;
  std::map<int, ActionLists> known_;  ///< by number of micro-batches
  std::vector<int> stage_ranks_;
};

struct StepTimes {
  struct Rank {
    double begin = 0, end = 0;  ///< begin of the rank's first and end of its last compute that takes time; 0 if it has none
  };
  std::vector<Rank> ranks;     ///< by pipeline rank
  double barrier_seconds = 0;  ///< as in Simulation
  int64_t simulated = 0;       ///< number of actions that were simulated: tests check with it that long schedules are extrapolated
};

/// The times that simulate() gives the lists of all micro-batches, up to rounding. `stages`: by global stage, not negative. A schedule is simulated
/// with few micro-batches, then with twice as many, until its times have a period: the times of all ranks and stages, over as many micro-batches as
/// are in flight at a time, are those of some micro-batches earlier plus one constant. All later times then follow, because each is a maximum of sums
/// of earlier ones. At worst, the whole schedule is simulated.
/// Errors: InternalError if a list cannot run to its end.
StepTimes step_times(StepSchedule& schedule, const std::vector<StageTimes>& stages);

}  // namespace trireme
