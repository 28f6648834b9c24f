#pragma once
#include "trainer/config/fields.h"
#include "trainer/config/report.h"

namespace trireme {

/// Range and choices of each key alone, where it has no violation yet; list items count one by one.
void check_fields(const FieldTable& table, const Sources& sources, Violations& violations);

}  // namespace trireme
