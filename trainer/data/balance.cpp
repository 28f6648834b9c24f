#include "trainer/data/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// The items of each bin, in ascending order.
std::vector<std::vector<int64_t>> items_of(std::span<const int64_t> bins, int64_t count) {
  std::vector<std::vector<int64_t>> items(static_cast<size_t>(count));
  for (size_t i = 0; i < bins.size(); ++i) items[static_cast<size_t>(bins[i])].push_back(static_cast<int64_t>(i));
  return items;
}

int64_t sum_at(std::span<const int64_t> costs, std::span<const int64_t> places) {
  int64_t sum = 0;
  for (const int64_t place : places) sum += costs[static_cast<size_t>(place)];
  return sum;
}

/// The places of one rank, micro-batch by micro-batch.
std::vector<int64_t> by_microbatch(std::span<const int64_t> costs, const std::vector<int64_t>& places, int64_t microbatches) {
  std::vector<int64_t> own;
  for (const int64_t place : places) own.push_back(costs[static_cast<size_t>(place)]);
  std::vector<std::vector<int64_t>> parts = items_of(longest_first(own, microbatches, std::ssize(own) / microbatches), microbatches);
  std::ranges::stable_sort(parts, std::ranges::greater(), [&](const std::vector<int64_t>& part) { return sum_at(own, part); });
  std::vector<int64_t> ordered;
  for (const std::vector<int64_t>& part : parts)
    for (const int64_t item : part) ordered.push_back(places[static_cast<size_t>(item)]);
  return ordered;
}

}  // namespace

std::vector<int64_t> longest_first(std::span<const int64_t> costs, int64_t bins, int64_t room) {
  TRIREME_CHECK(bins >= 1 && std::ssize(costs) <= bins * room, costs.size(), " items for ", bins, " bins of ", room);
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> chosen(costs.size()), sums(static_cast<size_t>(bins)), counts(static_cast<size_t>(bins));
  for (const size_t item : order) {
    size_t best = sums.size();
    for (size_t bin = 0; bin < sums.size(); ++bin)
      if (counts[bin] < room && (best == sums.size() || sums[bin] < sums[best])) best = bin;
    sums[best] += costs[item];
    ++counts[best];
    chosen[item] = static_cast<int64_t>(best);
  }
  return chosen;
}

int64_t sequence_cost(std::span<const int64_t> segments, int64_t hidden_size) {
  int64_t cost = 0;
  for (const int64_t length : segments) cost += length * (12 * hidden_size + length);
  return cost;
}

std::vector<int64_t> balanced_places(std::span<const int64_t> costs, int64_t ranks, int64_t microbatches) {
  const int64_t of_rank = std::ssize(costs) / ranks;
  TRIREME_CHECK(std::ssize(costs) == ranks * of_rank && of_rank % microbatches == 0, costs.size(), " sequences for ", ranks, " ranks with ",
                microbatches, " micro-batches");
  std::vector<int64_t> places;
  for (const std::vector<int64_t>& own : items_of(longest_first(costs, ranks, of_rank), ranks)) {
    const std::vector<int64_t> ordered = by_microbatch(costs, own, microbatches);
    places.insert(places.end(), ordered.begin(), ordered.end());
  }
  return places;
}

double cost_imbalance(std::span<const int64_t> costs, std::span<const int64_t> places, int64_t ranks) {
  const size_t of_rank = places.size() / static_cast<size_t>(ranks);
  int64_t most = 0, all = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t sum = sum_at(costs, places.subspan(static_cast<size_t>(rank) * of_rank, of_rank));
    most = std::max(most, sum);
    all += sum;
  }
  const double mean = static_cast<double>(all) / static_cast<double>(ranks);
  return mean > 0 ? (static_cast<double>(most) - mean) / mean : 0;
}

}  // namespace trireme
