#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/comm/collective_costs.h"
#include "trainer/bench/measure.h"

namespace trireme::bench {

/// Measures the costs of a message between the ranks of `world`, which all send at the same time as in a step of an algorithm, and how much longer a
/// step takes that also adds what it received, in fp32, for every power of two from 64 bytes to `largest`, and fits ranges to the medians. `start` is
/// what an all_reduce of 64 bytes takes beyond its formula. Equal on all ranks. Collective.
MessageCosts measure_message_costs(Context& ctx, Communicator& world, double largest, Effort effort, int64_t rounds);

/// Measures all_reduce, reduce_scatter and all_gather in place, in fp32, by each of `algorithms` and by `world` itself ("library"), for each size in bytes, rounded
/// up to whole numbers for every rank: [{"operation", "algorithm", "bytes", "microseconds", "least", "most", "algorithm_gb_per_second",
/// "bus_gb_per_second", "model_microseconds", "error"}]. bytes: size of the full buffer. microseconds: lowest median of a round; least, most: over all
/// rounds. Bus bandwidth as in bench_comm. model_microseconds: collective_seconds with `costs`; error: model / median - 1; both null for the library.
/// Collective; `world` has at least two ranks in CPU memory.
nlohmann::ordered_json bench_algorithms(Context& ctx, Communicator& world, const std::vector<CollectiveAlgorithm>& algorithms,
                                        const std::vector<int64_t>& sizes, const MessageCosts& costs, Effort effort, int64_t rounds);

/// The rows as a table, and the largest |error| of each operation and algorithm.
std::string algorithms_text(const nlohmann::ordered_json& rows);

/// Runs `body` on `ranks` threads of this process, each with a communicator of all of them. Rethrows the first error.
void on_rank_threads(int ranks, const std::function<void(Communicator& world)>& body);

}  // namespace trireme::bench
