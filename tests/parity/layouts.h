#pragma once
#include <array>
#include <vector>

#include "tests/support/parity.h"

namespace trireme::test {

struct ParityCase {
  ParityModel model;
  ParityLayout layout;
};

/// Every legal layout with tensor, pipeline, data in {1,2,3,4}, product <= 8, ZeRO 0-3, replicate x shard, sequence parallelism on and off, gpipe and
/// 1f1b; the other options (accumulation, reshard, prefetch, micro-batch size, layers per stage) cycle through their values along the list.
std::vector<ParityCase> all_parity_cases();

/// A case as the index of each option's value. The options: model, tensor, pipeline, data, ZeRO stage, replicate, sequence parallelism, schedule with
/// its virtual stages (1 to 3), accumulation, reshard, prefetch, micro-batch size, layers per stage even, uneven, or none in the first stage, the last or
/// both, recomputation, bucket, optimizer, moving average, window on no layer, on all or on some, algorithm of the collectives, islands with local
/// updates, documents with or without balance by cost, numbers of micro-batches that are equal, rebalanced, or of an elastic job that does not divide
/// its batch, secondary shards or none, what differs from the blocks of the model, frozen parameters or none, adapters or none. Models have 13 layers, and
/// worlds have up to eight ranks.
constexpr int kOptions = 26;
using Choice = std::array<int, kOptions>;
ParityCase case_of(const Choice& choice);
bool is_legal(const Choice& choice);

/// A covering array: legal choices in which every legal combination of values of any `strength` options appears. Greedy and deterministic; some
/// dozens for pairs.
std::vector<Choice> covering_choices(int strength);
std::vector<ParityCase> covering_parity_cases(int strength);

/// `count` legal choices, each option drawn independently.
std::vector<Choice> random_choices(size_t count, uint64_t seed);

}  // namespace trireme::test
