#pragma once
#include <functional>

#include "parallel/pipeline/timeline.h"

namespace trireme {

struct Simulation {
  std::vector<Timeline> ranks;      ///< by pipeline rank
  double step_seconds = 0;          ///< largest over ranks of (last end - first begin)
  double bubble = 0;                ///< 1 - mean over ranks of compute time / step_seconds
  std::vector<int> peak_in_flight;  ///< micro-batches whose activations are held, by rank
};

/// Runs a plan (lowered or compute-only; compute-only dependencies are implied) with the given seconds for each action. Transfers overlap compute:
/// a receive is over when both ends have been reached and its cost has passed; only its consumer waits for it. UNSHARD, RESHARD and REDUCE_* take
/// their seconds from the rank's compute: give the part that is not hidden.   Errors: InternalError for a plan that cannot run to its end.
Simulation simulate(const PipelinePlan& plan, const std::function<double(const Action&)>& seconds);

}  // namespace trireme
