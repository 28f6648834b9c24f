#include "trainer/plan/compression_gain.h"

#include <algorithm>

#include "trainer/layout/resolve.h"
#include "trainer/plan/stack.h"
#include "trainer/plan/text.h"

namespace trireme {

std::vector<CompressedStep> compression_gain(const Config& config, const ClusterConfig& cluster, const Forecast& plain) {
  constexpr double kLeastShare = 0.1, kLeastGain = 1.05;
  std::vector<CompressedStep> faster;
  if (!stack_of(cluster.software.stack).own) return faster;
  const auto matters = [&](double seconds) { return seconds >= kLeastShare * plain.step_seconds; };
  const auto add = [&](const char* key, const auto& value, auto CompressionConfig::*member) {
    Config tried = config;
    tried.training.compression.*member = value;
    try {
      const Forecast step = forecast(resolve(tried), cluster);
      if (step.fits && plain.step_seconds > kLeastGain * step.step_seconds) faster.push_back({key, name_of(value), step.step_seconds});
    } catch (const ConfigError&) {  // refused with other keys of this configuration
    }
  };
  const CompressionConfig& now = config.training.compression;
  if (now.method == CompressionMethod::kNone && matters(plain.parts.reduce))
    for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kInt4}) add("method", method, &CompressionConfig::method);
  if (now.parameters == ParameterEncoding::kNone && matters(plain.parts.gather))
    add("parameters", ParameterEncoding::kInt8, &CompressionConfig::parameters);
  std::ranges::sort(faster, std::ranges::greater(), &CompressedStep::step_seconds);
  return faster;
}

std::string compression_gain_text(const std::vector<CompressedStep>& steps, double plain_seconds) {
  std::string text = steps.empty() ? "" : "training.compression would make the step faster, and train another, nearby trajectory:\n";
  for (const auto& [key, value, seconds] : steps)
    text += print("  %-26s%11s  %.3g x as fast\n", (key + ": " + value).c_str(), seconds_text(seconds).c_str(), plain_seconds / seconds);
  return text;
}

}  // namespace trireme
