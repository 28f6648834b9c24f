#pragma once
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

/// A step with gradients compressed by one method of training.compression.
struct CompressedStep {
  CompressionMethod method = CompressionMethod::kNone;
  double step_seconds = 0;
};

/// The methods that make a step of `config` at least 1.05 times as fast and fit into memory, the fastest last, of those that train with AdamW as they
/// are (int8, int4). Empty if `plain`, the forecast of the step, has less than a tenth in the reduction of gradients, if the kernels are another
/// system's, or if other keys do not go with compression. `config` is resolved, except that gradient_accumulation may be auto. At most two forecasts.
std::vector<CompressedStep> compression_gain(const Config& config, const ClusterConfig& cluster, const Forecast& plain);

/// A line for each of these steps with its speed relative to one of `plain_seconds`; "" if there is none.
std::string compression_gain_text(const std::vector<CompressedStep>& steps, double plain_seconds);

}  // namespace trireme
