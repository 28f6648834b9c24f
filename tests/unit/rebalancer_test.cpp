// How micro-batches are split by speed, and when a run changes the split.
#include "trainer/run/rebalancer.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// `even` micro-batches of one sequence on each of `ranks` data ranks.
Config config_of(int ranks, int even, int pipeline = 1) {
  Config config;
  config.parallel.data = ranks;
  config.parallel.pipeline = pipeline;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = static_cast<int64_t>(ranks) * even;
  config.resilience.rebalance = Rebalance::kMicroBatches;
  return config;
}

/// The least longest_seconds of all splits of `left` micro-batches over the ranks from `rank` on.
double least_seconds(const std::vector<double>& seconds, const SplitLimits& limits, int left, size_t rank = 0) {
  if (rank == seconds.size()) return left == 0 ? 0 : 1e9;
  double least = 1e9;
  for (int count = limits.fewest; count <= std::min(limits.most, left); ++count)
    least = std::min(least, std::max(count * seconds[rank], least_seconds(seconds, limits, left - count, rank + 1)));
  return least;
}

std::optional<Rebalancer::Decision> after_steps(Rebalancer& rebalancer, const MicroBatchSplit& split, const std::vector<double>& seconds,
                                                size_t steps) {
  std::optional<Rebalancer::Decision> decision;
  for (size_t step = 0; step < steps; ++step) {
    CHECK_FALSE(decision);
    decision = rebalancer.add(split, seconds);
  }
  return decision;
}

}  // namespace

TEST_CASE("rebalance: no split within the limits is faster than the one by speed") {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = 2 + static_cast<int>(random() % 3), pipeline = 1 + static_cast<int>(random() % 3),
              even = pipeline + static_cast<int>(random() % 5);
    const Config config = config_of(ranks, even, pipeline);
    std::vector<double> seconds;
    for (int rank = 0; rank < ranks; ++rank) seconds.push_back(0.25 * static_cast<double>(1 + random() % 12));
    CAPTURE(ranks, even, pipeline, seconds);
    const MicroBatchSplit split = split_by_speed(config, seconds);
    CHECK(is_split_of(config, split));
    CHECK(longest_seconds(split, seconds) == least_seconds(seconds, split_limits(config), ranks * even));
  }
}

TEST_CASE("rebalance: limits, and splits of another layout") {
  const Config config = config_of(4, 6, 2);
  CHECK((split_limits(config).fewest == 2 && split_limits(config).most == 12));
  CHECK(split_limits(config_of(2, 6, 4)).most == 8);  // the other rank keeps 4
  CHECK((split_limits(config_of(2, 3, 4)).fewest == 3 && split_limits(config_of(2, 3, 4)).most == 3));
  CHECK(even_split(config) == MicroBatchSplit{6, 6, 6, 6});
  CHECK(largest_split(config, 2) == MicroBatchSplit{4, 4, 12, 4});
  CHECK(uneven_split(config) == MicroBatchSplit{12, 6, 4, 2});
  CHECK(is_split_of(config, {7, 3, 7, 7}));
  for (const MicroBatchSplit& other : {MicroBatchSplit{12, 12}, {7, 7, 7, 7}, {1, 9, 7, 7}, {13, 3, 4, 4}, {}})
    CHECK_FALSE(is_split_of(config, other));
}

TEST_CASE("rebalance: the imbalance is by how much longer than the mean the slowest rank takes") {
  CHECK(excess_of_slowest({1, 1, 1, 2}) == Approx(0.6));
  CHECK(excess_of_slowest({3, 3}) == Approx(0).margin(1e-15));
  CHECK(excess_of_slowest({0, 0}) == 0);
}

TEST_CASE("rebalance: medians of 20 steps decide, and a few slow steps do not") {
  Rebalancer rebalancer(config_of(4, 6));
  const MicroBatchSplit even{6, 6, 6, 6};
  for (int step = 0; step < 9; ++step) CHECK_FALSE(rebalancer.add(even, {1, 50, 1, 1}));
  CHECK_FALSE(after_steps(rebalancer, even, {1, 1, 1, 1}, 11));
  const std::optional<Rebalancer::Decision> decision = after_steps(rebalancer, even, {6, 12, 6, 6}, 20);
  REQUIRE(decision);
  CHECK(decision->split == MicroBatchSplit{7, 3, 7, 7});
  CHECK(decision->seconds == std::vector<double>{6, 12, 6, 6});
  CHECK_FALSE(after_steps(rebalancer, decision->split, {7, 6, 7, 7}, 40));  // nothing is faster
  CHECK_FALSE(after_steps(rebalancer, decision->split, {7.1, 6, 7, 7}, 19));
  rebalancer.restart();
  CHECK_FALSE(after_steps(rebalancer, decision->split, {7, 3, 7, 7}, 19));
  const std::optional<Rebalancer::Decision> back = rebalancer.add(decision->split, {7, 3, 7, 7});  // it is as fast as the others again
  REQUIRE(back);
  CHECK(back->split == even);
}

TEST_CASE("rebalance: a gain of less than 5 % changes nothing") {
  Rebalancer rebalancer(config_of(2, 40));
  CHECK_FALSE(after_steps(rebalancer, {40, 40}, {1, 1.08}, 20));
  CHECK(after_steps(rebalancer, {40, 40}, {1, 1.2}, 20));
}

TEST_CASE("rebalance: a gain just below and just above 5 %") {
  Rebalancer rebalancer(config_of(2, 100));
  // With 105 + 95 micro-batches of 0.01 and 0.011 s a step takes 1.05 instead of 1.1 s: 4.5 % less.
  CHECK_FALSE(after_steps(rebalancer, {100, 100}, {1, 1.1}, 20));
  // With 106 + 94 of 0.01 and 0.0112 s it takes 1.06 instead of 1.12 s: 5.4 % less.
  const std::optional<Rebalancer::Decision> decision = after_steps(rebalancer, {100, 100}, {1, 1.12}, 20);
  REQUIRE(decision);
  CHECK(decision->split == MicroBatchSplit{106, 94});
}

TEST_CASE("rebalance: two slow ranks of different speed, each by its own median, and a second decision from a second window") {
  Config config;
  config.parallel.data = 5;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = 30;
  config.resilience.rebalance = Rebalance::kMicroBatches;
  Rebalancer rebalancer(config);
  const MicroBatchSplit even{6, 6, 6, 6, 6};
  std::optional<Rebalancer::Decision> decision;
  // A median of twenty values is the upper one of the two in the middle: ten steps of each speed have the slower one.
  for (int step = 0; step < 20; ++step) {
    CHECK_FALSE(decision);
    decision = rebalancer.add(even, {6, step % 2 == 0 ? 12.0 : 11.0, 6, step % 2 == 0 ? 8.0 : 9.0, 6});
  }
  REQUIRE(decision);
  CHECK(decision->seconds == std::vector<double>{6, 12, 6, 9, 6});
  // Micro-batches take 1, 2, 1, 1.5 and 1 s: in 7.5 s there is time for 7 + 3 + 7 + 5 + 7 = 29 of the 30, in 8 s for more.
  CHECK(std::accumulate(decision->split.begin(), decision->split.end(), 0) == 30);
  CHECK(longest_seconds(decision->split, {1, 2, 1, 1.5, 1}) == 8);
  CHECK(excess_of_slowest(decision->seconds) == Approx(12 / 7.8 - 1));

  const MicroBatchSplit first = decision->split;
  std::vector<double> seconds;
  for (const int count : first) seconds.push_back(count);  // all are equally fast again
  decision.reset();
  for (int step = 0; step < 20; ++step) {
    CHECK_FALSE(decision);
    decision = rebalancer.add(first, seconds);
  }
  REQUIRE(decision);
  CHECK(decision->split == even);
}
