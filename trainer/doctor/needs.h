#pragma once
#include "trainer/config/config.h"
#include "trainer/doctor/facts.h"

namespace trireme::doctor {

/// `config` is resolved.
Needs needs_of(const Config& config);

/// Memory of rank `rank` by the run's own forecast, in bytes: of its GPU, with the allowance for the driver, where run.device is cuda; otherwise of the
/// host, without the workspace of CPU kernels.
double forecast_bytes(const Config& config, int rank);

}  // namespace trireme::doctor
