#include "kernels/core/rng.h"

#include <cmath>
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("Philox4x32-10 matches the known answers of Random123") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// Computed in Python integers from the definitions in the header.
TEST_CASE("random numbers match the specification in the header") {
  const uint64_t key = random_key(1234, "init:blocks.0.mlp.up.weight");
  CHECK(key == 0xbdda8b2642b3d5c);
  CHECK(random_key(0, "") == 0x5b21f68ffa77f14c);
  CHECK(random_bits(key, 5, 7) == 0xc4bd2949fd52b965);
  CHECK(random_bits(key, (uint64_t{1} << 40) + 3, (uint64_t{1} << 33) + 1) == 0x340d647154cd983d);
  CHECK(random_uniform(key, 5, 7) == 0.7685113721502813);
  CHECK(random_uniform32(key, 20, 7) == 0xfd52b965 * 0x1p-32);
  CHECK(random_uniform32(key, 21, 7) == 0xc4bd2949 * 0x1p-32);
  CHECK(random_uniform32(key, 22, 7) == 0x81b25939 * 0x1p-32);
  CHECK(random_uniform32(key, 23, 7) == 0xa8a9ada0 * 0x1p-32);
  CHECK(random_uniform32(key, (uint64_t{1} << 40) + 3, (uint64_t{1} << 33) + 1) == 0x097daa82 * 0x1p-32);
  CHECK(random_normal(key, 0) == Approx(-1.5146963751758313).epsilon(1e-15));
  CHECK(random_normal(key, 1) == Approx(1.040074181411428).epsilon(1e-15));
  CHECK(random_normal(key, (uint64_t{1} << 40) + 3) == Approx(-0.7877551349576171).epsilon(1e-15));
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < 10; ++i) order.push_back(random_permutation(key, i, 10));
  CHECK(order == std::vector<uint64_t>{8, 5, 4, 0, 3, 6, 7, 9, 2, 1});
  CHECK(random_permutation(key, 123456789, 1000000000000) == 925727701399);
}

TEST_CASE("streams differ by seed and by purpose") {
  CHECK(random_key(1, "a") != random_key(2, "a"));
  CHECK(random_key(1, "a") != random_key(1, "b"));
  CHECK(random_key(1, "a") != random_key(1, ""));
}

TEST_CASE("normal numbers have the moments of a normal distribution") {
  constexpr uint64_t kCount = 100000;
  const uint64_t key = random_key(1, "moments");
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = random_normal(key, i);
    sum += x;
    sum2 += x * x;
    sum3 += x * x * x;
    sum4 += x * x * x * x;
  }
  // Five standard errors: sqrt(1, 2, 15, 96 over the count).
  CHECK(std::abs(sum / kCount) < 0.016);
  CHECK(std::abs(sum2 / kCount - 1) < 0.023);
  CHECK(std::abs(sum3 / kCount) < 0.062);
  CHECK(std::abs(sum4 / kCount - 3) < 0.16);
}

TEST_CASE("uniform numbers fill the unit interval evenly") {
  constexpr int kBins = 20, kPerBin = 2000;
  for (auto* const uniform : {random_uniform, random_uniform32}) {
    std::vector<int> bins(kBins, 0);
    for (uint64_t i = 0; i < kBins * kPerBin; ++i) {
      const double u = uniform(9, i, 0);
      REQUIRE((u >= 0 && u < 1));
      ++bins[static_cast<size_t>(u * kBins)];
    }
    double chi_squared = 0;
    for (int count : bins) chi_squared += (count - kPerBin) * (count - kPerBin) / static_cast<double>(kPerBin);
    CHECK(chi_squared < 43.8);  // 19 degrees of freedom, one in a thousand
  }
}

TEST_CASE("neighbours that share a call are independent") {
  constexpr int kSides = 4, kPerCell = 2000;
  for (const uint64_t distance : {1, 2, 3, 4}) {
    std::vector<int> cells(kSides * kSides, 0);
    for (uint64_t i = 0; i < kSides * kSides * kPerCell; ++i)
      ++cells[static_cast<size_t>(random_uniform32(9, i) * kSides) * kSides + static_cast<size_t>(random_uniform32(9, i + distance) * kSides)];
    double chi_squared = 0;
    for (int count : cells) chi_squared += (count - kPerCell) * (count - kPerCell) / static_cast<double>(kPerCell);
    INFO("distance " << distance);
    CHECK(chi_squared < 37.7);  // 15 degrees of freedom, one in a thousand
  }
}

TEST_CASE("a permutation visits every index once, and differs by key") {
  for (uint64_t n : {1, 2, 3, 5, 16, 17, 64, 1000}) {
    std::vector<bool> seen(n, false);
    bool differs = false;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = random_permutation(11, i, n);
      REQUIRE(at < n);
      REQUIRE_FALSE(seen[at]);
      seen[at] = true;
      differs = differs || at != random_permutation(12, i, n);
    }
    CHECK(differs == (n > 2));
  }
  CHECK_THROWS_AS(random_permutation(11, 5, 5), InternalError);
  CHECK_THROWS_AS(random_permutation(11, 0, 0), InternalError);
}

TEST_CASE("a permutation maps an index to every position with equal probability") {
  constexpr int kPlaces = 5, kKeys = 10000;
  std::vector<int> hits(kPlaces, 0);
  for (uint64_t key = 0; key < kKeys; ++key) ++hits[random_permutation(random_key(key, "order"), 0, kPlaces)];
  double chi_squared = 0;
  for (int count : hits) chi_squared += (count - kKeys / kPlaces) * (count - kKeys / kPlaces) / static_cast<double>(kKeys / kPlaces);
  CHECK(chi_squared < 18.5);  // 4 degrees of freedom, one in a thousand
}
