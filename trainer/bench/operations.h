#pragma once
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/loop/trainer.h"

namespace trireme::bench {

/// Times every operation of one forward and backward of `trainer` on this rank, the second of two: [{"operation", "layer", "calls", "seconds", "share",
/// "tflops", "gb_per_second", "of_limit"}], the longest first. share: of all of them. Products and attention have TFLOP/s, the rest GB/s of what passes
/// through memory. of_limit: of `product_flops` (FLOP/s that the products of this model reach alone), or of what a copy larger than caches reaches; null for
/// attention. On a GPU each operation is waited for, so that a launch is in its seconds. Collective.
nlohmann::ordered_json operations_of(Context& ctx, Trainer& trainer, const Config& config, double product_flops, const Effort& effort);

}  // namespace trireme::bench
