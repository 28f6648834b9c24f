#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// The rules of security.privacy that need no data, and what does not go with it. `c`: with all derived sizes filled in.
void check_privacy(Rules& rules, const Config& c);

}  // namespace trireme
