#pragma once
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

struct BandwidthOptions {
  int64_t rows = 0;         ///< M, tokens of one call
  int64_t working_set = 0;  ///< bytes: repeated calls go through operands of at least this size together, so that no cache holds what a call reads
  Effort effort;
  std::vector<std::string> kernels = {};  ///< only these; empty: all
};

/// Bytes per second, read and written, of `copy` from one fp32 buffer to another, each half the working set.
double copy_bandwidth(const Context& like, const BandwidthOptions& options);

/// Every operation that memory bounds, at the sizes of `model` (resolved): an array of {"kernel", "microseconds", "bytes", "gb_per_second",
/// "share_of_copy"}. bytes: what must move, each operand read once and each result written once.
nlohmann::ordered_json bench_bandwidth(const Context& like, DType dtype, const ModelConfig& model, double copy_bytes_per_second,
                                       const BandwidthOptions& options);

}  // namespace trireme::bench
