#include "trainer/model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/core/check.h"

namespace trireme {
namespace {

double scaled(double frequency, const RopeScalingConfig& s) {
  if (s.type == RopeScaling::kNone) return frequency;
  if (s.type == RopeScaling::kLinear) return frequency / s.factor;
  TRIREME_CHECK(s.type == RopeScaling::kLlama3, "model.rope_scaling.type=", s.type);
  const double turns = static_cast<double>(s.original_max_positions) * frequency / (2 * std::numbers::pi);  // P / w
  // The clamp yields the unscaled frequency above high_frequency_factor and the fully scaled one below low_frequency_factor.
  const double kept = std::clamp((turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor), 0.0, 1.0);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(double theta, int64_t rotated, const RopeScalingConfig& scaling) {
  TRIREME_CHECK(rotated % 2 == 0, "RoPE rotates pairs: ", rotated, " is odd");
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotated / 2; ++i)
    frequencies.push_back(scaled(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)), scaling));
  return frequencies;
}

}  // namespace trireme
