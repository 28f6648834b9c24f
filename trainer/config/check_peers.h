#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// The rules of resilience.peer_copies: what cannot continue from the memory of peers.
void check_peers(Rules& rules, const Config& c);

}  // namespace trireme
