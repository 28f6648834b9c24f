#include "trainer/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using trireme::Sampler;

namespace {

/// The first `count` samples of a run in the order they are consumed.
std::vector<int64_t> consumed(const Sampler& sampler, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t p = 0; p < count; ++p) samples.push_back(sampler.sample(p / sampler.global_batch, p % sampler.global_batch));
  return samples;
}

std::vector<int64_t> all_of(int64_t sequences) {
  std::vector<int64_t> samples(static_cast<size_t>(sequences));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

}  // namespace

TEST_CASE("every epoch is a permutation of its own, also where a batch spans two epochs", "[sampler]") {
  for (const int64_t sequences : {1, 2, 3, 7, 64, 101, 1000}) {
    for (const int64_t global_batch : {1, 4, 10, 128}) {
      CAPTURE(sequences, global_batch);
      const auto samples = consumed({1234, sequences, global_batch}, 3 * sequences);
      for (auto epoch = samples.begin(); epoch != samples.end(); epoch += sequences) {
        std::vector<int64_t> sorted(epoch, epoch + sequences);
        std::sort(sorted.begin(), sorted.end());
        REQUIRE(sorted == all_of(sequences));
      }
    }
  }
  const auto samples = consumed({1234, 101, 4}, 3 * 101);
  CHECK_FALSE(std::equal(samples.begin(), samples.begin() + 101, samples.begin() + 101));
  CHECK_FALSE(std::equal(samples.begin() + 101, samples.begin() + 202, samples.begin() + 202));
  CHECK(std::vector<int64_t>(samples.begin(), samples.begin() + 101) != all_of(101));
}

TEST_CASE("the order depends on the seed and the position, not on the batch size", "[sampler]") {
  const auto samples = consumed({1234, 101, 4}, 400);
  CHECK(samples == consumed({1234, 101, 4}, 400));
  CHECK(samples == consumed({1234, 101, 16}, 400));
  CHECK(samples != consumed({1235, 101, 4}, 400));
}

TEST_CASE("the shuffled order spreads over the data", "[sampler]") {
  // Of the first tenth consumed, about a tenth comes from each tenth of the data: 1000 draws, each bin 100 +- 10 (one sigma); six sigma allowed.
  const auto samples = consumed({1, 10000, 8}, 1000);
  for (int64_t bin = 0; bin < 10; ++bin) {
    const auto count = std::count_if(samples.begin(), samples.end(), [bin](int64_t sample) { return sample / 1000 == bin; });
    CHECK(count > 40);
    CHECK(count < 160);
  }
}

TEST_CASE("a late step of a huge dataset is reached at once", "[sampler]") {
  const int64_t sequences = int64_t{1} << 40;
  const Sampler sampler{7, sequences, 4096};
  const int64_t step = (int64_t{1} << 30) + 3;
  CHECK(sampler.sample(step, 17) == sampler.sample(step, 17));
  CHECK(sampler.sample(step, 17) != sampler.sample(step, 18));
  int64_t highest = 0;
  for (int64_t i = 0; i < 4096; ++i) highest = std::max(highest, sampler.sample(step, i));
  CHECK(highest > (int64_t{1} << 39));
  CHECK(highest < sequences);
}

TEST_CASE("steps for a number of epochs round up", "[sampler]") {
  CHECK(Sampler{0, 100, 10}.steps_for(1) == 10);
  CHECK(Sampler{0, 101, 10}.steps_for(1) == 11);
  CHECK(Sampler{0, 101, 10}.steps_for(3) == 31);
}

TEST_CASE("evaluation reads every sample once, in order, and pads the last batch", "[sampler]") {
  std::vector<int64_t> samples;
  for (int64_t batch = 0; batch < 3; ++batch)
    for (int64_t i = 0; i < 4; ++i) samples.push_back(trireme::evaluation_sample(10, 4, batch, i));
  CHECK(samples == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1});
}

TEST_CASE("an index outside the global batch is a broken invariant", "[sampler]") {
  CHECK_THROWS_AS((Sampler{0, 10, 4}.sample(0, 4)), trireme::InternalError);
  CHECK_THROWS_AS((Sampler{0, 10, 4}.sample(-1, 0)), trireme::InternalError);
}
