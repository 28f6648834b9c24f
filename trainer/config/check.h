#pragma once
#include "trainer/config/config.h"
#include "trainer/config/report.h"

namespace trireme {

/// Every rule that needs no world size: the range and choices of each key, keys given without effect, and the rules between keys. Rules that read
/// a key already in `violations` are left out. Each violation stands at the key that is best changed.
void check(const Config& config, const Sources& sources, Violations& violations);

}  // namespace trireme
