#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/bench/measure.h"

namespace trireme::bench {

/// Measures all_reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v (equal counts) over `world` and a ring of sends (each rank to the next),
/// for each size in bytes, rounded up to whole fp32 numbers for every rank: [{"operation", "bytes", "microseconds", "low", "high",
/// "algorithm_gb_per_second", "bus_gb_per_second"}]. bytes: size of the full buffer (all-gather output, reduce-scatter input). Each of the `rounds`
/// measures everything once, so that other work on the machine, which comes and goes in seconds, does not meet every measurement of a size.
/// microseconds: the lowest median of a round; low and high: 10 % and 90 % quantiles over all rounds. Bus bandwidth: algorithm bandwidth times 2(n-1)/n
/// for all_reduce, 1 for the ring, (n-1)/n for the others. Each call waits for the previous one. Collective; `world` has at least two ranks.
nlohmann::ordered_json bench_comm(Context& ctx, Communicator& world, const std::vector<int64_t>& sizes, Effort effort, int64_t rounds = 1);

}  // namespace trireme::bench
