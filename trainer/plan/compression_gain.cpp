#include "trainer/plan/compression_gain.h"

#include <algorithm>

#include "trainer/layout/resolve.h"
#include "trainer/plan/stack.h"
#include "trainer/plan/text.h"

namespace trireme {

std::vector<CompressedStep> compression_gain(const Config& config, const ClusterConfig& cluster, const Forecast& plain) {
  constexpr double kLeastShare = 0.1, kLeastGain = 1.05;
  std::vector<CompressedStep> faster;
  const bool compressed = config.training.compression.method != CompressionMethod::kNone;
  if (compressed || !stack_of(cluster.software.stack).own || plain.parts.reduce < kLeastShare * plain.step_seconds) return faster;
  Config tried = config;
  for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kInt4}) {
    tried.training.compression.method = method;
    try {
      const Forecast step = forecast(resolve(tried), cluster);
      if (step.fits && plain.step_seconds > kLeastGain * step.step_seconds) faster.push_back({method, step.step_seconds});
    } catch (const ConfigError&) {  // refused with other keys of this configuration
    }
  }
  std::ranges::sort(faster, std::ranges::greater(), &CompressedStep::step_seconds);
  return faster;
}

std::string compression_gain_text(const std::vector<CompressedStep>& steps, double plain_seconds) {
  std::string text = steps.empty() ? "" : "training.compression.method would make the step faster, and train another, nearby trajectory:\n";
  for (const auto& [method, seconds] : steps)
    text += print("  %-26s%11s  %.3g x as fast\n", name_of(method), seconds_text(seconds).c_str(), plain_seconds / seconds);
  return text;
}

}  // namespace trireme
