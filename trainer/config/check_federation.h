#pragma once
#include "trainer/config/rules.h"

namespace trireme {

/// Fewest members of a round of `federation` (FederationConfig::minimum).
int64_t fewest_members(const FederationConfig& federation);

/// Standard deviation of the noise that each member adds to its update; 0: none. Any `minimum` - 1 members together add noise * clip, so that the epsilon holds
/// against a member too, which can subtract its own.
double noise_of_member(const FederationConfig& federation);

/// Rules of security.federation: rounds and the fewest members.
void check_federation(Rules& rules, const Config& c);

}  // namespace trireme
