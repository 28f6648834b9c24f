#pragma once
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

struct BandwidthOptions {
  int64_t rows = 0;         ///< M, tokens of one call
  int64_t working_set = 0;  ///< bytes: repeated calls cycle through operands of at least this total size, so that no call reads from a cache
  Effort effort;
  std::vector<std::string> kernels = {};  ///< only these; empty: all
};

/// Bandwidth of `copy` between two fp32 buffers of half the working set each, in bytes/s read plus written.
double copy_bandwidth(const Context& like, const BandwidthOptions& options);

/// Measures every memory-bound operation at the sizes of `model` (resolved): an array of {"kernel", "microseconds", "bytes", "gb_per_second",
/// "share_of_copy"}. bytes: minimum traffic, with each operand read once and each result written once.
nlohmann::ordered_json bench_bandwidth(const Context& like, DType dtype, const ModelConfig& model, double copy_bytes_per_second,
                                       const BandwidthOptions& options);

}  // namespace trireme::bench
