#pragma once
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/loop/trainer.h"

namespace trireme::bench {

/// What operations of each kind could reach on this rank, while the others are as busy.
struct OperationLimits {
  double product_flops = 0;  ///< FLOP/s of the model's own products alone
  double bandwidth = 0;      ///< bytes a second, read and written, of a copy larger than caches
};
double copy_bandwidth(const Context& like, const Effort& effort);

/// Times every operation of one forward and backward of `trainer` on this rank, the second of two: [{"operation", "layer", "calls", "seconds", "share",
/// "tflops", "gb_per_second", "of_limit"}], the longest first. share: of all of them. Products and attention have TFLOP/s, the rest GB/s of what passes
/// through memory. of_limit is null for attention. On a GPU each operation is waited for, so that a launch is in its seconds. Collective; each rank has its own table.
nlohmann::ordered_json operations_of(Context& ctx, Trainer& trainer, const Config& config, const OperationLimits& limits);

}  // namespace trireme::bench
