// Sequences of a global batch assigned to ranks and micro-batches by cost: longest processing time first, with equal numbers.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "trainer/data/balance.h"
#include "trainer/data/packing.h"

namespace trireme::test {
namespace {

using Costs = std::vector<int64_t>;

Costs sums_of(const Costs& costs, const Costs& bins, size_t count) {
  Costs sums(count);
  for (size_t i = 0; i < costs.size(); ++i) sums[static_cast<size_t>(bins[i])] += costs[i];
  return sums;
}

Costs in_order(size_t count) {
  Costs places(count);
  std::iota(places.begin(), places.end(), int64_t{0});
  return places;
}

/// Costs of sequences of 4,096 tokens, packed from documents of log-normal length, with median 300 and the shape 1, at most 4,096.
Costs packed_costs(uint64_t seed, int64_t hidden_size) {
  constexpr int64_t kLength = 4096, kDocuments = 8192;
  Costs lengths;
  for (uint64_t d = 0; d < kDocuments; ++d)
    lengths.push_back(std::min<int64_t>(kLength, 1 + static_cast<int64_t>(300 * std::exp(random_normal(random_key(seed, "balance"), d)))));
  const Costs bins = best_fit_decreasing(lengths, kLength);
  std::vector<Costs> segments(static_cast<size_t>(*std::ranges::max_element(bins)) + 1);
  for (size_t d = 0; d < lengths.size(); ++d) segments[static_cast<size_t>(bins[d])].push_back(lengths[d]);
  Costs costs;
  for (Costs& sequence : segments) {
    const int64_t padding = kLength - std::accumulate(sequence.begin(), sequence.end(), int64_t{0});
    if (padding > 0) sequence.push_back(padding);
    costs.push_back(sequence_cost(sequence, hidden_size));
  }
  return costs;
}

}  // namespace

TEST_CASE("balance: longest processing time first gives its known worst case") {
  const Costs costs = {5, 5, 4, 4, 3, 3, 3};
  CHECK(longest_first(costs, 3, 7) == Costs{0, 1, 2, 2, 0, 1, 0});
  CHECK(sums_of(costs, longest_first(costs, 3, 7), 3) == Costs{11, 8, 8});  // 9 is possible
  CHECK(sums_of(costs, longest_first(costs, 3, 3), 3) == Costs{11, 8, 8});
  CHECK(longest_first(Costs{9, 1, 1, 1}, 2, 2) == Costs{0, 1, 1, 0});  // at most two each: the third 1 does not fit beside the others
  CHECK(longest_first(Costs{2, 2, 2, 2}, 2, 2) == Costs{0, 1, 0, 1});
  CHECK_THROWS_AS(longest_first(costs, 3, 2), InternalError);
}

TEST_CASE("balance: the cost of a sequence is linear in its tokens and quadratic in its documents") {
  CHECK(sequence_cost(Costs{10}, 2) == 10 * 24 + 100);
  CHECK(sequence_cost(Costs{4, 6}, 2) == 10 * 24 + 16 + 36);
  // Attention is a sixth of the other products at 8,192 tokens and a width of 4,096.
  CHECK(static_cast<double>(sequence_cost(Costs{8192}, 4096)) / static_cast<double>(8192 * int64_t{12 * 4096}) == Approx(1 + 1 / 6.0));
}

TEST_CASE("balance: every place is taken once, by ranks and micro-batches of equal numbers, the most expensive micro-batch first") {
  for (uint64_t trial = 0; trial < 40; ++trial) {
    const uint64_t key = random_key(trial, "places");
    const auto ranks = static_cast<int64_t>(1 + random_bits(key, 0) % 5), microbatches = static_cast<int64_t>(1 + random_bits(key, 1) % 4);
    const auto rows = static_cast<int64_t>(1 + random_bits(key, 2) % 3);
    Costs costs;
    for (uint64_t i = 0; i < static_cast<uint64_t>(ranks * microbatches * rows); ++i)
      costs.push_back(static_cast<int64_t>(random_bits(key, 3 + i) % 50));
    const Costs places = balanced_places(costs, ranks, microbatches);
    CAPTURE(trial, ranks, microbatches, rows, costs, places);
    Costs sorted = places;
    std::ranges::sort(sorted);
    REQUIRE(sorted == in_order(costs.size()));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t before = -1;
      for (int64_t m = 0; m < microbatches; ++m) {
        int64_t sum = 0;
        for (int64_t r = 0; r < rows; ++r) sum += costs[static_cast<size_t>(places[static_cast<size_t>((rank * microbatches + m) * rows + r)])];
        REQUIRE((before < 0 || sum <= before));
        before = sum;
      }
    }
    double most = 0, all = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      double sum = 0;
      for (int64_t i = 0; i < microbatches * rows; ++i)
        sum += static_cast<double>(costs[static_cast<size_t>(places[static_cast<size_t>(rank * microbatches * rows + i)])]);
      most = std::max(most, sum);
      all += sum;
    }
    REQUIRE(cost_imbalance(costs, places, ranks) == Approx(all > 0 ? most * static_cast<double>(ranks) / all - 1 : 0).margin(1e-12));
  }
  CHECK_THROWS_AS(balanced_places(Costs(7, 1), 2, 1), InternalError);
  CHECK_THROWS_AS(balanced_places(Costs(8, 1), 2, 3), InternalError);
  CHECK(cost_imbalance(Costs{3, 1, 1, 1}, in_order(4), 2) == Approx(1 / 3.0));
  CHECK(cost_imbalance(Costs{0, 0}, in_order(2), 2) == 0);
}

TEST_CASE("balance: packed sequences of log-normal documents differ by less than 2 % over eight ranks from a width of 1024") {
  constexpr int64_t kRanks = 8, kBatch = 64;
  // At a small width long documents cost too much for eight sequences on each rank.
  for (const auto& [width, limit] : {std::pair<int64_t, double>{256, 0.04}, {512, 0.025}, {1024, 0.02}, {4096, 0.02}}) {
    double worst = 0, worst_before = 0;
    const Costs costs = packed_costs(static_cast<uint64_t>(width), width);
    for (size_t first = 0; first + kBatch <= costs.size(); first += kBatch) {
      Costs batch;  // in a random order, as a run draws them
      for (uint64_t i = 0; i < kBatch; ++i)
        batch.push_back(costs[static_cast<size_t>(random_permutation(5, static_cast<uint64_t>(first) + i, costs.size()))]);
      worst_before = std::max(worst_before, cost_imbalance(batch, in_order(kBatch), kRanks));
      worst = std::max(worst, cost_imbalance(batch, balanced_places(batch, kRanks, 2), kRanks));
    }
    INFO("width " << width << ": at most " << worst << ", without balance " << worst_before);
    CHECK(worst < limit);
    CHECK(worst_before > 4 * worst);
  }
}

}  // namespace trireme::test
