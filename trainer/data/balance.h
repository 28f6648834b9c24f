#pragma once
// Assigns the sequences of a global batch to data ranks and micro-batches by their cost.
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

/// Longest processing time first (Graham, 1969): the most expensive item first, each to the bin with the lowest sum so far among those with fewer
/// than `room` items. Of equal costs the lower index comes first, of equal sums the lower bin. Returns the bin of each item. Without the limit by room the
/// highest sum is at most 4/3 - 1/(3 bins) of the lowest possible one. O(n bins).
/// Errors: InternalError if the items do not fit.
std::vector<int64_t> longest_first(std::span<const int64_t> costs, int64_t bins, int64_t room);

/// Cost of a sequence: the sum of l + l^2 / (12 hidden_size) over its segments of l tokens, in units of 1 / (12 hidden_size) of a token. A token's
/// matrix products in a block of width h take 24 h^2 FLOPs, and its causal attention over a segment of l tokens 2 l h on average, if
/// the MLP has 8 h^2 weights, heads x head_size is h and there is no window. The embedding and the head are left out: they cost the same per token.
int64_t sequence_cost(std::span<const int64_t> segments, int64_t hidden_size);

/// An order of the places of a global batch, in which data rank r computes those from r n / ranks on, with n = costs.size(), micro-batch by
/// micro-batch. Ranks and the micro-batches of a rank get equal numbers of sequences, assigned by longest_first. A rank computes its most expensive
/// micro-batch first, so that the micro-batches that ranks compute at the same time cost about the same. `costs`: by place.
std::vector<int64_t> balanced_places(std::span<const int64_t> costs, int64_t ranks, int64_t microbatches);

/// (max - mean) / mean of the ranks' sums of costs, in such an order.
double cost_imbalance(std::span<const int64_t> costs, std::span<const int64_t> places, int64_t ranks);

}  // namespace trireme
