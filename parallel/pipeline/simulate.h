#pragma once
#include <functional>

#include "parallel/pipeline/timeline.h"

namespace trireme {

struct Simulation {
  std::vector<Timeline> ranks;  ///< by pipeline rank
  double step_seconds = 0;      ///< largest over ranks of (last end - first begin), transfers aside: ranks begin the next step as they end this one
  double barrier_seconds = 0;   ///< last end of all ranks - first begin of all: the step where an optimizer waits for all ranks
  double bubble = 0;            ///< 1 - mean over ranks of compute time / step_seconds
};

/// Runs lists with the given seconds for each action. Transfers overlap compute, their cost is that of the receive, and only its consumer waits for
/// it. In lowered lists a transfer begins when both lists have reached it; in a compute-only schedule between ranks, where none is listed, when its data
/// exists. NORM holds every rank until all are there. All other actions take their seconds from the rank's compute: give the part that is not hidden.
/// Errors: InternalError for lists that cannot run to its end, with the action that a rank never gets past.
Simulation simulate(const ActionLists& lists, const std::function<double(const Action&)>& seconds);

}  // namespace trireme
