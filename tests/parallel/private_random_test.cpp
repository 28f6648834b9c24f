// Noise and samples of differentially private training: golden values, which a script computed from the header's specification with 36 digits, and
// statistics.
#include "parallel/crypto/private_random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <numbers>
#include <string>

#include "parallel/crypto/sodium.h"
#include "tests/support/catch.h"

namespace trireme::crypto {
namespace {

/// Bytes start, start + 1, ...
Key counting_key(uint8_t start = 0) {
  Key key;
  for (size_t i = 0; i < kKeyBytes; ++i) key.data()[i] = static_cast<uint8_t>(start + i);
  return key;
}

std::vector<double> normals(const PrivateRandom& random, std::string_view name, int64_t step, int64_t first, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  random.normal(name, step, first, values);
  return values;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum / static_cast<double>(a.size());
}

/// Probability of a Kolmogorov-Smirnov distance of at least this one if `values` are standard normal.
double kolmogorov_smirnov(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double at = std::erfc(-values[i] / std::numbers::sqrt2) / 2;
    distance = std::max({distance, at - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - at});
  }
  const double scaled = distance * (std::sqrt(n) + 0.12 + 0.11 / std::sqrt(n));
  double p = 0;
  for (int k = 1; k < 100; ++k) p += (k % 2 == 1 ? 2 : -2) * std::exp(-2.0 * k * k * scaled * scaled);
  return p;
}

void check_normals(int64_t count) {
  const std::vector<double> values = normals(PrivateRandom(counting_key()), "statistics", 1, 0, count);
  const double n = static_cast<double>(count);
  double sum = 0, square = 0, fourth = 0;
  for (const double x : values) sum += x, square += x * x, fourth += x * x * x * x;
  CHECK(std::abs(sum) < 4 * std::sqrt(n));
  CHECK(std::sqrt(square / n) == Approx(1).epsilon(0.01));
  CHECK(std::abs(square / n - 1) < 4 * std::sqrt(2 / n));
  CHECK(std::abs(fourth / n - 3) < 4 * std::sqrt(96 / n));
  CHECK(kolmogorov_smirnov(values) > 0.01);
  // Values of one pair share a radius; neither they nor neighbours of different pairs may be correlated.
  for (const size_t lag : {1, 2, 8}) {
    double product = 0;
    for (size_t i = lag; i < values.size(); ++i) product += values[i] * values[i - lag];
    CHECK(std::abs(product) < 4 * std::sqrt(n));
  }
}

/// Chi-square of `observed` counts against `expected` ones, less its degrees of freedom, in standard deviations.
double excess(const std::vector<double>& observed, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < observed.size(); ++i) sum += (observed[i] - expected[i]) * (observed[i] - expected[i]) / expected[i];
  const double freedom = static_cast<double>(observed.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("private random numbers: values of a known key are those of the specification") {
  if (!has_sodium()) return;
  const PrivateRandom random(counting_key());
  const auto one = [&](std::string_view name, int64_t step, int64_t index) { return normals(random, name, step, index, 1)[0]; };
  CHECK(one("blocks.0.attention.query.weight", 1, 0) == Approx(-1.005626584302043912).epsilon(4e-15));
  CHECK(one("blocks.0.attention.query.weight", 1, 1) == Approx(1.102833728834074507).epsilon(4e-15));
  CHECK(one("blocks.0.attention.query.weight", 1, 9) == Approx(-0.058473314219804104707).epsilon(4e-14));
  CHECK(one("blocks.0.attention.query.weight", 7, 1000003) == Approx(1.3557713092731903314).epsilon(4e-15));
  CHECK(one("embedding.weight", int64_t{1} << 40, (int64_t{1} << 36) + 5) == Approx(0.63163107865859271834).epsilon(4e-15));
  CHECK(one("", 0, 0) == Approx(0.38784987441825572361).epsilon(4e-15));
  using Indices = std::vector<int64_t>;
  CHECK(random.poisson_sample(1, 1000, 0.01) == Indices{37, 46, 50, 171, 642, 650, 748, 802, 804, 823, 858});
  CHECK(random.poisson_sample(2, 40, 0.25) == Indices{1, 2, 5, 6, 10, 11, 16, 17, 28, 31});
  CHECK(random.poisson_sample(3, 16, 0.75) == Indices{0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15});
  CHECK(random.poisson_sample(3, 1'000'000'000'000, 5e-12) == Indices{141739148064, 227421696988, 405268142590, 459861011705, 691468239310});
  CHECK(random.fingerprint() == "ddda13cf0b04e02b");
}

TEST_CASE("private random numbers: any part of a sequence has the bits of the whole") {
  if (!has_sodium()) return;
  const PrivateRandom random(counting_key());
  const std::vector<double> whole = normals(random, "weight", 3, 0, 3000);
  for (const int64_t first : {0, 1, 7, 8, 9, 511, 512, 513, 2047, 2999})
    for (const int64_t count : {0, 1, 2, 7, 8, 9, 505, 512, 513, 1025}) {
      if (first + count > 3000) continue;
      CAPTURE(first, count);
      CHECK(std::equal(whole.begin() + first, whole.begin() + first + count, normals(random, "weight", 3, first, count).begin()));
    }
  const PrivateRandom same(counting_key()), copied(random);
  CHECK(normals(same, "weight", 3, 0, 3000) == whole);
  CHECK(normals(copied, "weight", 3, 0, 3000) == whole);
  CHECK(copied.poisson_sample(1, 1000, 0.1) == random.poisson_sample(1, 1000, 0.1));
  CHECK(copied.fingerprint() == random.fingerprint());
}

TEST_CASE("private random numbers: normals have the distribution of normals") {
  if (has_sodium()) check_normals(1'000'000);
}

TEST_CASE("private random numbers: ten million normals have the distribution of normals", "[slow]") {
  if (has_sodium()) check_normals(10'000'000);
}

TEST_CASE("private random numbers: names, steps and keys have unrelated values") {
  if (!has_sodium()) return;
  constexpr int64_t kCount = 100'000;
  const double bound = 4.5 / std::sqrt(static_cast<double>(kCount));
  const PrivateRandom random(counting_key()), other(counting_key(1));
  std::vector<std::vector<double>> sequences;
  for (const char* name : {"a", "b", "blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"})
    for (const int64_t step : {0, 1, 2}) sequences.push_back(normals(random, name, step, 0, kCount));
  sequences.push_back(normals(other, "a", 0, 0, kCount));
  for (size_t i = 0; i < sequences.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      CAPTURE(i, j);
      CHECK(std::abs(correlation(sequences[i], sequences[j])) < bound);
    }
  CHECK(random.poisson_sample(1, 10000, 0.1) != random.poisson_sample(2, 10000, 0.1));
  CHECK(random.poisson_sample(1, 10000, 0.1) != other.poisson_sample(1, 10000, 0.1));
  CHECK(random.fingerprint() != other.fingerprint());
}

TEST_CASE("private random numbers: samples and noise come from different keys") {
  if (!has_sodium()) return;
  // What poisson_sample() would return if it drew its words from the noise of any name that a parameter may have.
  const Key key = counting_key();
  const PrivateRandom random(key);
  const std::vector<int64_t> sample = random.poisson_sample(5, 1'000'000, 1e-4);
  for (const Key& wrong :
       {derive(key, "privacy noise"), derive(derive(key, "privacy noise"), ""), derive(derive(key, "privacy noise"), "privacy samples")}) {
    uint64_t word = 0;
    keystream(wrong, 5, 0, {reinterpret_cast<uint8_t*>(&word), sizeof word});
    const double skipped = std::floor(std::log((static_cast<double>(word >> 11) + 1) * 0x1p-53) / std::log1p(-1e-4));
    CHECK(static_cast<double>(sample.front()) != skipped);
  }
  uint64_t word = 0;
  keystream(derive(key, "privacy samples"), 5, 0, {reinterpret_cast<uint8_t*>(&word), sizeof word});
  CHECK(static_cast<double>(sample.front()) == std::floor(std::log((static_cast<double>(word >> 11) + 1) * 0x1p-53) / std::log1p(-1e-4)));
}

TEST_CASE("private random numbers: sizes of samples are binomial, and indices uniform") {
  if (!has_sodium()) return;
  const PrivateRandom random(counting_key());
  for (const auto& [n, rate] : {std::pair<int64_t, double>(1000, 0.01), {200, 0.3}, {40, 0.8}}) {
    CAPTURE(n, rate);
    constexpr int64_t kSteps = 20000;
    std::vector<double> sizes(static_cast<size_t>(n + 1)), indices(static_cast<size_t>(n));
    double pairs = 0;  // of neighbours that are both sampled
    for (int64_t step = 0; step < kSteps; ++step) {
      const std::vector<int64_t> sample = random.poisson_sample(step, n, rate);
      REQUIRE(std::is_sorted(sample.begin(), sample.end()));
      REQUIRE(std::adjacent_find(sample.begin(), sample.end()) == sample.end());
      ++sizes[sample.size()];
      for (const int64_t index : sample) ++indices[static_cast<size_t>(index)];
      for (size_t i = 1; i < sample.size(); ++i) pairs += sample[i] == sample[i - 1] + 1 ? 1 : 0;
    }
    // Sizes that are expected fewer than ten times are one class.
    std::vector<double> observed{0}, expected{0};
    for (int64_t size = 0; size <= n; ++size) {
      const double x = static_cast<double>(size), m = static_cast<double>(n);
      const double p = std::exp(std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) + x * std::log(rate) + (m - x) * std::log1p(-rate));
      if (p * kSteps < 10) {
        observed[0] += sizes[static_cast<size_t>(size)];
        expected[0] += p * kSteps;
      } else {
        observed.push_back(sizes[static_cast<size_t>(size)]);
        expected.push_back(p * kSteps);
      }
    }
    CHECK(observed.size() > 8);
    CHECK(std::abs(excess(observed, expected)) < 4);
    // A count of one index has the variance of a binomial distribution, which is (1 - rate) times that which chi-square assumes.
    const double freedom = static_cast<double>(n);
    double sum = 0;
    for (const double count : indices) sum += (count - kSteps * rate) * (count - kSteps * rate) / (kSteps * rate * (1 - rate));
    CHECK(std::abs(sum - freedom) < 4 * std::sqrt(2 * freedom));
    const double expected_pairs = static_cast<double>(n - 1) * rate * rate * kSteps;
    CHECK(std::abs(pairs - expected_pairs) < 6 * std::sqrt(expected_pairs * (1 + 2 * rate)));
  }
}

TEST_CASE("private random numbers: the rank of an index is uniform, and does not depend on other indices") {
  if (!has_sodium()) return;
  constexpr int kRanks = 7;
  const PrivateRandom random(counting_key()), other(counting_key(1));
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < 70'000; ++i) indices.push_back(3 * i);
  const std::vector<int> ranks = random.ranks_of(4, indices, kRanks);
  std::vector<double> counts(kRanks);
  double same_as_next = 0, same_in_other_step = 0;
  const std::vector<int> next_step = random.ranks_of(5, indices, kRanks);
  for (size_t i = 0; i < ranks.size(); ++i) {
    ++counts.at(static_cast<size_t>(ranks[i]));
    same_as_next += i > 0 && ranks[i] == ranks[i - 1] ? 1 : 0;
    same_in_other_step += ranks[i] == next_step[i] ? 1 : 0;
  }
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 10'000) * (count - 10'000) / 10'000;
  CHECK(chi_square < 22.5);  // exceeded with a probability of 0.001
  CHECK(std::abs(same_as_next - 10'000) < 4 * std::sqrt(10'000 * 6.0 / 7));
  CHECK(std::abs(same_in_other_step - 10'000) < 4 * std::sqrt(10'000 * 6.0 / 7));
  for (const int64_t removed : {0, 1, 500, 69'999}) {
    std::vector<int64_t> rest = indices;
    std::vector<int> expected = ranks;
    rest.erase(rest.begin() + removed);
    expected.erase(expected.begin() + removed);
    CHECK(random.ranks_of(4, rest, kRanks) == expected);
  }
  CHECK(other.ranks_of(4, indices, kRanks) != ranks);
  CHECK(random.ranks_of(4, {}, kRanks).empty());
}

TEST_CASE("private random numbers: samples of all, none and one") {
  if (!has_sodium()) return;
  const PrivateRandom random(counting_key());
  CHECK(random.poisson_sample(1, 1000, 0).empty());
  CHECK(random.poisson_sample(1, 0, 0.5).empty());
  CHECK(random.poisson_sample(1, 0, 1).empty());
  CHECK(random.poisson_sample(1, 3, 1) == std::vector<int64_t>{0, 1, 2});
  CHECK(random.poisson_sample(1, 1000, 1e-300).empty());
  CHECK(random.poisson_sample(1, 1000, 1 - 0x1p-53).size() == 1000);
}

TEST_CASE("private random numbers: secret keys are overwritten at the end") {
  if (!has_sodium()) return;
  const Key noise = derive(counting_key(), "privacy noise"), samples = derive(counting_key(), "privacy samples");
  alignas(PrivateRandom) std::array<uint8_t, sizeof(PrivateRandom)> memory{};
  const auto contains = [&](const Key& key) {
    const volatile uint8_t* bytes = memory.data();
    std::array<uint8_t, sizeof(PrivateRandom)> copy;
    for (size_t i = 0; i < copy.size(); ++i) copy[i] = bytes[i];
    return std::search(copy.begin(), copy.end(), key.data(), key.data() + kKeyBytes) != copy.end();
  };
  PrivateRandom* const random = new (memory.data()) PrivateRandom(counting_key());
  REQUIRE(contains(noise));
  REQUIRE(contains(samples));
  random->~PrivateRandom();
  CHECK_FALSE(contains(noise));
  CHECK_FALSE(contains(samples));
}

}  // namespace trireme::crypto
