#pragma once
#include <functional>

#include "parallel/pipeline/timeline.h"

namespace trireme {

struct Simulation {
  std::vector<Timeline> ranks;  ///< by pipeline rank
  double step_seconds = 0;      ///< max over ranks of (last end - first begin) without transfers: a rank begins the next step as it ends this one
  double barrier_seconds = 0;   ///< last end of all ranks - first begin of all: the step if an optimizer waits for all ranks
  double bubble = 0;            ///< 1 - mean over ranks of compute time / step_seconds
};

/// Simulates lists with the given seconds for each action. Transfers overlap compute: a transfer costs the seconds of its receive, and only the
/// consumer waits for it. In lowered lists a transfer begins when both ranks have reached it; in compute-only schedules, which list none, when its
/// data is available. WAIT_CLIP blocks a rank until all have reached CLIP of the micro-batch, NORM until all have reached NORM. All other actions block the rank's compute: give only the time that is not
/// overlapped.
/// Errors: InternalError if a list cannot run to its end, with the rank and the action at which it is stuck.
Simulation simulate(const ActionLists& lists, const std::function<double(const Action&)>& seconds);

}  // namespace trireme
