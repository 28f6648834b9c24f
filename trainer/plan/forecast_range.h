#pragma once
// How far measured step times lie from their forecasts, by the published runs that were forecast without their own table
// (scripts/bench/published_fit.cpp).
#include <limits>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// The sizes by which a run resembles others.
struct RunSizes {
  double devices = 0, hidden = 0, sequence = 0, microbatch = 0;  ///< sequence and micro-batch in tokens, of all ranks that share a sequence
};
/// `config` and `cluster` are resolved.
RunSizes sizes_of_run(const Config& config, const ClusterConfig& cluster);

/// Least and most of each size over some runs.
struct RunSpan {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  RunSizes least{kNone, kNone, kNone, kNone}, most;
  void add(const RunSizes& sizes);
  /// The name of the first size that is more than a factor of two beyond the span; nullptr if none is.
  const char* first_beyond(const RunSizes& sizes) const;
};

/// Memory bandwidth relative to that of the built-in device of the same type; 1 for other types.
double bandwidth_share(const DeviceConfig& device);

/// The published runs of a stack to which its figures were fitted.
struct SeenRuns {
  std::string stack;
  int runs;
  RunSpan span;
  bool fp8;                ///< whether some of them compute in fp8
  double least_bandwidth;  ///< least bandwidth_share() of their devices, whose other figures are those of built-in types
  bool of_system;          ///< whether `error` is that of their own system, or of all systems because they are few
  double error;            ///< 90th percentile of |forecast / measured - 1| of runs within the span whose table was left out of the fit
};
const std::vector<SeenRuns>& seen_runs();

/// 90th percentiles of the same: of runs beyond the span of the other runs of their stack, and of the runs of a stack of which no run was fitted.
constexpr double kErrorBeyond = 0.275, kErrorUnseen = 0.18;

/// Nine of ten runs like this have |forecast / step time - 1| <= `error`.
struct ForecastRange {
  double error = 0;
  std::string basis;  ///< what the error is, without its figure
  double low(double forecast) const { return forecast / (1 + error); }
  double high(double forecast) const { return forecast / (1 - error); }
};
ForecastRange forecast_range(const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
