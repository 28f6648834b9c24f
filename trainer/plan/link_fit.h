#pragma once
// Fits latency and bandwidth of single operations to timings, by ranges of sizes: transports change their protocol with the size of a message, which
// bends the line.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"

namespace trireme {

/// Time of one operation on `bytes`.
struct SizeSample {
  double bytes = 0, seconds = 0;
};

/// seconds = alpha + beta x bytes, for the samples from `first` to `last` bytes.
struct SizeRange {
  double first = 0, last = 0;  ///< smallest and largest measured size in it
  double alpha = 0, beta = 0;  ///< seconds, seconds/byte; neither is negative
  double worst = 0;            ///< largest |model / measured - 1| of its samples
  int64_t samples = 0;
};

/// The fewest ranges whose lines come within a tenth of every sample, but at most four. Each has at least three samples, since two determine a line and
/// say nothing about its error. The sizes at which ranges begin minimise the sum of the squared logarithms of model / measured. `samples`: of distinct
/// sizes, in any order. Errors: ConfigError for fewer than three samples.
std::vector<SizeRange> fit_ranges(std::vector<SizeSample> samples);

/// The model's time of `bytes` by the range that LinkRanges would choose. `ranges` is not empty.
double range_seconds(const std::vector<SizeRange>& ranges, double bytes);

/// The fit of an operation over `ranks` ranks, in the terms of a cluster file. `operation`: all_reduce, all_gather, reduce_scatter or send_receive.
LinkRanges link_ranges(const std::string& operation, int64_t ranks, const std::vector<SizeRange>& ranges);

/// Fits every operation of the rows of bench_comm that a cluster file knows to its "low" times, which other programs have not disturbed, and adds
/// "model_microseconds" and "error" (model / low - 1) to these rows, null to the others. Sets their ranges in `link`. Returns [{"operation", "from", "to",
/// "samples", "latency", "bandwidth", "worst_error"}].
nlohmann::ordered_json fit_comm(nlohmann::ordered_json& rows, int64_t ranks, LinkConfig& link);

}  // namespace trireme
