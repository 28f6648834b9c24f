#include "trainer/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using trireme::Dataset;
using trireme::Sampler;

namespace {

/// One group.
Sampler plain(uint64_t seed, int64_t sequences, int64_t global_batch) { return {seed, {{sequences, 1.0}}, global_batch}; }

/// The first `count` samples of a run in the order they are consumed.
std::vector<int64_t> consumed(const Sampler& sampler, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t p = 0; p < count; ++p) samples.push_back(sampler.sample(p / sampler.global_batch(), p % sampler.global_batch()));
  return samples;
}

std::vector<int64_t> all_of(int64_t sequences) {
  std::vector<int64_t> samples(static_cast<size_t>(sequences));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

}  // namespace

TEST_CASE("every epoch is a different permutation, even if a batch spans two epochs", "[sampler]") {
  for (const int64_t sequences : {1, 2, 3, 7, 64, 101, 1000}) {
    for (const int64_t global_batch : {1, 4, 10, 128}) {
      CAPTURE(sequences, global_batch);
      const auto samples = consumed(plain(1234, sequences, global_batch), 3 * sequences);
      for (auto epoch = samples.begin(); epoch != samples.end(); epoch += sequences) {
        std::vector<int64_t> sorted(epoch, epoch + sequences);
        std::sort(sorted.begin(), sorted.end());
        REQUIRE(sorted == all_of(sequences));
      }
    }
  }
  const auto samples = consumed(plain(1234, 101, 4), 3 * 101);
  CHECK_FALSE(std::equal(samples.begin(), samples.begin() + 101, samples.begin() + 101));
  CHECK_FALSE(std::equal(samples.begin() + 101, samples.begin() + 202, samples.begin() + 202));
  CHECK(std::vector<int64_t>(samples.begin(), samples.begin() + 101) != all_of(101));
}

TEST_CASE("the order of a run never changes", "[sampler]") {
  // A newer version may resume a checkpoint. The values come from an independent implementation of the specification in kernels/core/rng.h.
  const std::vector<int64_t> samples = consumed(plain(1234, 101, 4), 105);
  CHECK(std::vector<int64_t>(samples.begin(), samples.begin() + 8) == std::vector<int64_t>{62, 46, 58, 44, 23, 60, 37, 1});
  CHECK(std::vector<int64_t>(samples.begin() + 99, samples.end()) == std::vector<int64_t>{68, 27, 0, 89, 42, 65});  // spans two epochs
}

TEST_CASE("a changed batch size continues at the next place, and other data begin at their first", "[sampler]") {
  const auto samples = consumed(plain(1234, 101, 4), 400);
  const Sampler larger(1234, {{101, 1.0}}, 10, {7, 28});
  for (const int64_t step : {7, 8, 20})
    for (int64_t i = 0; i < 10; ++i) CHECK(larger.sample(step, i) == samples[static_cast<size_t>(28 + (step - 7) * 10 + i)]);
  const Sampler other(1234, {{101, 1.0}}, 4, {9, 0});
  for (int64_t i = 0; i < 4; ++i) CHECK(other.sample(9, i) == samples[static_cast<size_t>(i)]);
  CHECK_THROWS_AS(other.sample(8, 0), trireme::InternalError);
}

TEST_CASE("samples of each group before a step are those that were taken", "[sampler]") {
  const std::vector<Dataset::Group> groups = {{50, 0.2}, {3, 0.1}, {1000, 0.65}, {7, 0.05}};
  const auto group_of = [&](int64_t sample) {
    size_t group = 0;
    for (; sample >= groups[group].sequences; ++group) sample -= groups[group].sequences;
    return group;
  };
  const auto check = [&](const Sampler& sampler, int64_t first, std::vector<int64_t> counts) {
    for (int64_t step = first; step < first + 60; ++step) {
      CAPTURE(step);
      REQUIRE(sampler.samples_before(step) == counts);
      for (int64_t i = 0; i < sampler.global_batch(); ++i) ++counts[group_of(sampler.sample(step, i))];
    }
  };
  check(Sampler(1234, groups, 7), 0, {0, 0, 0, 0});
  check(Sampler(1234, groups, 7, {5, 0}), 5, {0, 0, 0, 0});
  // A larger batch from step 10 on, behind the 70 samples of smaller ones.
  check(Sampler(1234, groups, 16, {10, 70}), 10, Sampler(1234, groups, 7).samples_before(10));
  CHECK(plain(1234, 101, 4).samples_before(9) == std::vector<int64_t>{36});
}

TEST_CASE("the order depends on the seed and the position, not on the batch size", "[sampler]") {
  const auto samples = consumed(plain(1234, 101, 4), 400);
  CHECK(samples == consumed(plain(1234, 101, 4), 400));
  CHECK(samples == consumed(plain(1234, 101, 16), 400));
  CHECK(samples != consumed(plain(1235, 101, 4), 400));
}

TEST_CASE("the shuffled order spreads over the data", "[sampler]") {
  // About a tenth of the first tenth consumed comes from each tenth of the data: 1000 draws, each bin 100 +- 10 (one sigma); six sigma allowed.
  const auto samples = consumed(plain(1, 10000, 8), 1000);
  for (int64_t bin = 0; bin < 10; ++bin) {
    const auto count = std::count_if(samples.begin(), samples.end(), [bin](int64_t sample) { return sample / 1000 == bin; });
    CHECK(count > 40);
    CHECK(count < 160);
  }
}

TEST_CASE("a late step of a huge dataset takes constant time", "[sampler]") {
  const int64_t sequences = int64_t{1} << 40;
  const Sampler sampler = plain(7, sequences, 4096);
  const int64_t step = (int64_t{1} << 30) + 3;
  CHECK(sampler.sample(step, 17) == sampler.sample(step, 17));
  CHECK(sampler.sample(step, 17) != sampler.sample(step, 18));
  int64_t highest = 0;
  for (int64_t i = 0; i < 4096; ++i) highest = std::max(highest, sampler.sample(step, i));
  CHECK(highest > (int64_t{1} << 39));
  CHECK(highest < sequences);
}

TEST_CASE("steps for a number of epochs round up", "[sampler]") {
  CHECK(plain(0, 100, 10).steps_for(1) == 10);
  CHECK(plain(0, 101, 10).steps_for(1) == 11);
  CHECK(plain(0, 101, 10).steps_for(3) == 31);
  CHECK(Sampler(0, {{60, 1.0}, {41, 9.0}}, 10).steps_for(3) == 31);
}

TEST_CASE("evaluation reads every sample once, in order, and pads the last batch", "[sampler]") {
  std::vector<int64_t> samples;
  for (int64_t batch = 0; batch < 3; ++batch)
    for (int64_t i = 0; i < 4; ++i) samples.push_back(trireme::evaluation_sample(10, 4, batch, i));
  CHECK(samples == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1});
}

TEST_CASE("an index outside the global batch is a broken invariant", "[sampler]") {
  CHECK_THROWS_AS((plain(0, 10, 4).sample(0, 4)), trireme::InternalError);
  CHECK_THROWS_AS((plain(0, 10, 4).sample(-1, 0)), trireme::InternalError);
}

TEST_CASE("blends keep their weights, and every group visits each sample once per epoch", "[sampler]") {
  constexpr int64_t kPlaces = 100'000, kBatch = 96;
  const std::vector<std::vector<Dataset::Group>> blends = {
      {{1000, 1.0}},
      {{1000, 1.0}, {1000, 1.0}},
      {{100, 0.7}, {3000, 0.2}, {1, 0.1}},
      {{7, 1e-3}, {50'000, 1.0}},
      {{100'000, 5.0}, {200'000, 3.0}, {33, 0.25}, {4097, 17.0}, {12, 1.0}},
      {{10, 1.0}, {20, 1.0 / 3}, {30, 1.0 / 7}, {40, 1.0 / 11}, {50, 1.0 / 13}, {60, 1.0 / 17}, {70, 1.0 / 19}, {80, 1.0 / 23}},
  };
  for (const std::vector<Dataset::Group>& groups : blends) {
    CAPTURE(groups.size(), groups[0].weight);
    const std::vector<int64_t> samples = consumed(Sampler(42, groups, kBatch), kPlaces);
    double sum = 0;
    for (const Dataset::Group& group : groups) sum += group.weight;
    int64_t first = 0;
    for (const Dataset::Group& group : groups) {
      CAPTURE(first);
      std::vector<int64_t> own;
      double farthest = 0;
      for (int64_t p = 0; p < kPlaces; ++p) {
        const int64_t sample = samples[static_cast<size_t>(p)];
        if (sample >= first && sample < first + group.sequences) own.push_back(sample - first);
        farthest = std::max(farthest, std::abs(static_cast<double>(own.size()) - static_cast<double>(p + 1) * group.weight / sum));
      }
      // Checked at every place, not only at the end.
      CHECK(farthest <= static_cast<double>(groups.size()));
      CHECK(std::abs(static_cast<double>(own.size()) / kPlaces - group.weight / sum) <= 1e-3 * std::max(group.weight / sum, 0.02));
      for (size_t begin = 0; begin < own.size(); begin += static_cast<size_t>(group.sequences)) {
        const size_t end = std::min(own.size(), begin + static_cast<size_t>(group.sequences));
        std::vector<int64_t> epoch(own.begin() + static_cast<std::ptrdiff_t>(begin), own.begin() + static_cast<std::ptrdiff_t>(end));
        std::sort(epoch.begin(), epoch.end());
        if (end == begin + static_cast<size_t>(group.sequences))
          REQUIRE(epoch == all_of(group.sequences));  // a complete epoch has each sample once
        else
          REQUIRE(std::adjacent_find(epoch.begin(), epoch.end()) == epoch.end());
      }
      first += group.sequences;
    }
  }
}

TEST_CASE("groups of equal size are shuffled differently, and only the ratio of weights matters", "[sampler]") {
  const std::vector<int64_t> samples = consumed(Sampler(3, {{50, 1.0}, {50, 1.0}}, 10), 100);
  std::vector<int64_t> a, b;
  for (const int64_t sample : samples) (sample < 50 ? a : b).push_back(sample % 50);
  CHECK(a.size() == 50);
  CHECK(a != b);
  CHECK(samples == consumed(Sampler(3, {{50, 0.001}, {50, 0.001}}, 25), 100));
}

TEST_CASE("a late step of a huge blend takes constant time and keeps the weights", "[sampler]") {
  const int64_t sequences = int64_t{1} << 40;
  const Sampler sampler(7, {{sequences, 3.0}, {1000, 1.0}}, 4096);
  const int64_t step = (int64_t{1} << 45) + 3;
  int64_t small = 0;
  for (int64_t i = 0; i < 4096; ++i) small += sampler.sample(step, i) >= sequences ? 1 : 0;
  CHECK(small == 1024);
}

TEST_CASE("groups without samples or weight are a broken invariant", "[sampler]") {
  CHECK_THROWS_AS(Sampler(0, {}, 4), trireme::InternalError);
  CHECK_THROWS_AS(Sampler(0, {{0, 1.0}}, 4), trireme::InternalError);
  CHECK_THROWS_AS(Sampler(0, {{5, 1.0}, {5, 0.0}}, 4), trireme::InternalError);
}
