#pragma once
#include "trainer/config/config.h"
#include "trainer/config/fields.h"
#include "trainer/config/report.h"

namespace trireme {

/// Every rule that needs no world size: the range and choices of each key, keys given without effect, and the rules between keys. Rules that read
/// a key already in `violations` are left out. Each violation stands at the key that is best changed.
void check(const Config& config, const Sources& sources, Violations& violations);

/// Range and choices of each key alone, where it has no violation yet; list items count one by one.
void check_fields(const FieldTable& table, const Sources& sources, Violations& violations);

/// The values of `model` and `run.directory` that follow from others, filled in; layout and training are left as they are.
Config with_derived_sizes(Config config);

}  // namespace trireme
