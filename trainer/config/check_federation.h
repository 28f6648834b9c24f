#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// Fewest members of a round of `federation` (FederationConfig::minimum).
int64_t fewest_members(const FederationConfig& federation);

/// Rules of security.federation, and what it does not go with.
void check_federation(Rules& rules, const Config& c);

}  // namespace trireme
