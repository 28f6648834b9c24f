#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// The rules of resilience.elastic: what cannot be continued by another number of data ranks.
void check_elastic(Rules& rules, const Config& c);

}  // namespace trireme
