#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// The rules of what ranks send each other: training.compression, training.local, training.asynchronous, resilience.rebalance and security.aggregation,
/// and what does not go with each. `c`: with all derived sizes filled in.
void check_communication(Rules& rules, const Config& c);

}  // namespace trireme
