#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// Fills in `auto` values of `model`, run.directory and parallel.virtual_stages that follow from other keys; other values stay unchanged.
Config with_derived_sizes(Config config);

}  // namespace trireme
