#pragma once
#include <vector>

#include "parallel/pipeline/action.h"

namespace trireme {

/// When each action of one rank ran, in seconds from a common origin: what the executor measured or the simulator predicted.
struct TimelineEvent {
  Action action;
  double begin = 0;
  double end = 0;
};
using Timeline = std::vector<TimelineEvent>;

}  // namespace trireme
