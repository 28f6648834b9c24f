#pragma once
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/loop/trainer.h"

namespace trireme::bench {

/// Upper limits for operations on this rank, measured while the other ranks are equally busy.
struct OperationLimits {
  double product_flops = 0;  ///< FLOP/s of the model's own products alone
  double bandwidth = 0;      ///< bytes/s, read plus written, of a copy larger than the caches
};
double copy_bandwidth(const Context& like, const Effort& effort);

/// Times every operation on this rank in the second of two forward and backward passes of `trainer`: [{"operation", "layer", "calls", "seconds",
/// "share", "tflops", "gb_per_second", "of_limit"}], longest first. share: share of the total. Products and attention have TFLOP/s, other operations
/// GB/s of memory traffic. of_limit is null for attention. On a GPU each operation is synchronised, so its time includes the launch. Collective; each
/// rank has its own table.
nlohmann::ordered_json operations_of(Context& ctx, Trainer& trainer, const Config& config, const OperationLimits& limits);

}  // namespace trireme::bench
