#pragma once
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

/// A step with one key of training.compression set.
struct CompressedStep {
  std::string key;  ///< "method" or "parameters"
  std::string value;
  double step_seconds = 0;
};

/// The keys that make a step of `config` at least 1.05 times as fast and fit into memory, the fastest last: int8 and int4, which train with AdamW as they
/// are, for gradients whose reduction takes a tenth of `plain`, the forecast of the step, and int8 for parameters whose gathers do. Empty for kernels of
/// another system; a key that does not go with others is left out. `config` is resolved, except that gradient_accumulation may be auto. At most three
/// forecasts.
std::vector<CompressedStep> compression_gain(const Config& config, const ClusterConfig& cluster, const Forecast& plain);

/// A line for each of these steps with its speed relative to one of `plain_seconds`; "" if there is none.
std::string compression_gain_text(const std::vector<CompressedStep>& steps, double plain_seconds);

}  // namespace trireme
