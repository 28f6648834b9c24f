#pragma once
#include "trainer/config/fields.h"
#include "trainer/config/report.h"

namespace trireme {

/// Checks range and choices of each key that has no violation yet; list items are checked one by one.
void check_fields(const FieldTable& table, const Sources& sources, Violations& violations);

}  // namespace trireme
