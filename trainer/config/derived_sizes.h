#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// The values of `model` and `run.directory` that follow from others, filled in; layout and training are left as they are.
Config with_derived_sizes(Config config);

}  // namespace trireme
