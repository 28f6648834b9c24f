#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// The numbers of what ranks send each other: training.compression, training.local, training.asynchronous, security.aggregation and resilience.
/// `c`: with all derived sizes filled in.
void check_communication(Rules& rules, const Config& c);

}  // namespace trireme
