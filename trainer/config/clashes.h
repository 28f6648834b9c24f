#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// Refuses settings that do not go together, by one table: a feature that lacks what it needs, and two features of which one breaks what the other needs.
/// `sound`: with every number within its range and all derived sizes.
void check_clashes(Rules& rules, const Config& sound);

}  // namespace trireme
