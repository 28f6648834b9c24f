// Secret sharing: values computed by hand, every subset of shares, and what too few shares tell.
#include "parallel/crypto/shamir.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"
#include "tests/support/catch.h"

namespace trireme::crypto {
namespace {

Key key_filled_with(uint8_t byte) {
  Key key;
  std::fill_n(key.data(), kKeyBytes, byte);
  return key;
}

Key random_secret() {
  Key key;
  draw({key.data(), kKeyBytes});
  return key;
}

bool same_bytes(const Key& a, const Key& b) { return std::equal(a.data(), a.data() + kKeyBytes, b.data()); }

std::vector<uint8_t> points_up_to(size_t n) {
  std::vector<uint8_t> points(n);
  std::iota(points.begin(), points.end(), uint8_t{1});
  return points;
}

/// The shares whose bits are set in `chosen`.
std::vector<Share> chosen_shares(const std::vector<Share>& shares, uint32_t chosen) {
  std::vector<Share> some;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (((chosen >> i) & 1) == 0) continue;
    some.push_back({shares[i].point, {}});
    std::copy_n(shares[i].value.data(), kKeyBytes, some.back().value.data());
  }
  return some;
}

/// Chi-square of counts that are expected to be equal, less its degrees of freedom, in standard deviations.
double excess_over_uniform(const std::vector<int>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("secret sharing: products in GF(256) are those of FIPS 197, and a field's") {
  CHECK(gf_multiply(0x57, 0x83) == 0xC1);
  CHECK(gf_multiply(0x57, 0x13) == 0xFE);
  CHECK(gf_multiply(0x53, 0xCA) == 0x01);
  int wrong = 0;
  for (int a = 0; a < 256; ++a) {
    const uint8_t x = static_cast<uint8_t>(a);
    std::vector<bool> seen(256);
    for (int b = 0; b < 256; ++b) {
      const uint8_t y = static_cast<uint8_t>(b);
      wrong += gf_multiply(x, y) != gf_multiply(y, x);
      wrong += gf_multiply(x, static_cast<uint8_t>(y ^ 0x35)) != (gf_multiply(x, y) ^ gf_multiply(x, 0x35));
      seen[gf_multiply(x, y)] = true;
    }
    wrong += a != 0 && std::ranges::count(seen, true) != 256;
  }
  CHECK(wrong == 0);
}

TEST_CASE("secret sharing: shares of a known polynomial give its value at 0") {
  if (!has_sodium()) return;
  // 0x42 + x, and 0x53 + 0x57 x + 0x83 x^2.
  const std::vector<std::pair<uint8_t, uint8_t>> line{{1, 0x43}, {2, 0x40}, {3, 0x41}, {255, 0xBD}};
  for (size_t i = 0; i < line.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      std::vector<Share> shares;
      shares.push_back({line[i].first, key_filled_with(line[i].second)});
      shares.push_back({line[j].first, key_filled_with(line[j].second)});
      CHECK(same_bytes(combine(shares), key_filled_with(0x42)));
    }
  std::vector<Share> parabola;
  parabola.push_back({1, key_filled_with(0x87)});
  parabola.push_back({2, key_filled_with(0xC7)});
  parabola.push_back({64, key_filled_with(0x6F)});
  CHECK(same_bytes(combine(parabola), key_filled_with(0x53)));
}

TEST_CASE("secret sharing: every subset of as many shares as the threshold gives the secret, and of fewer does not") {
  if (!has_sodium()) return;
  for (size_t n = 1; n <= 7; ++n)
    for (size_t threshold = 1; threshold <= n; ++threshold) {
      const Key secret = random_secret();
      const std::vector<Share> shares = split(secret, threshold, points_up_to(n));
      REQUIRE(shares.size() == n);
      for (uint32_t chosen = 1; chosen < 1U << n; ++chosen) {
        CAPTURE(n, threshold, chosen);
        const size_t count = static_cast<size_t>(std::popcount(chosen));
        if (count <= threshold) CHECK(same_bytes(combine(chosen_shares(shares, chosen)), secret) == (count == threshold));
      }
    }
}

TEST_CASE("secret sharing: 64 shares, of which any 43 give the secret") {
  if (!has_sodium()) return;
  const Key secret = random_secret();
  std::vector<Share> shares = split(secret, 43, points_up_to(64));
  CHECK(same_bytes(combine(std::span(shares).first(43)), secret));
  CHECK(same_bytes(combine(std::span(shares).last(43)), secret));
  CHECK_FALSE(same_bytes(combine(std::span(shares).last(42)), secret));
  std::ranges::reverse(shares);
  CHECK(same_bytes(combine(std::span(shares).subspan(7, 43)), secret));
  shares[10].value.data()[31] ^= 1;
  CHECK_FALSE(same_bytes(combine(std::span(shares).subspan(7, 43)), secret));
}

TEST_CASE("secret sharing: one share fewer than the threshold is consistent with every secret") {
  if (!has_sodium()) return;
  for (const size_t threshold : {2, 3, 5}) {
    const std::vector<Share> shares = split(random_secret(), threshold, points_up_to(threshold));
    std::vector<Share> known = chosen_shares(shares, (1U << threshold) - 1);
    std::vector<bool> possible(256);
    for (int guess = 0; guess < 256; ++guess) {
      known.back().value = key_filled_with(static_cast<uint8_t>(guess));
      possible[combine(known).data()[17]] = true;
    }
    CHECK(std::ranges::count(possible, true) == 256);
  }
}

TEST_CASE("secret sharing: fewer shares than the threshold are uniform, alone and together, whatever the secret") {
  if (!has_sodium()) return;
  constexpr int kTrials = 4000;  // of 32 bytes each
  for (const uint8_t byte : {uint8_t{0}, uint8_t{0xA7}}) {
    std::vector<int> singles(256), pairs(256), triples(256);
    for (int trial = 0; trial < kTrials; ++trial) {
      const std::vector<Share> shares = split(key_filled_with(byte), 3, points_up_to(3));
      for (size_t i = 0; i < kKeyBytes; ++i) {
        const uint8_t a = shares[0].value.data()[i], b = shares[1].value.data()[i], c = shares[2].value.data()[i];
        ++singles[a];
        ++pairs[static_cast<size_t>((a & 0xF) << 4 | (b & 0xF))];
        ++triples[static_cast<size_t>(a ^ b ^ c)];
      }
    }
    CHECK(std::abs(excess_over_uniform(singles)) < 6);
    CHECK(std::abs(excess_over_uniform(pairs)) < 6);
    // The check can fail: three shares at points 1, 2 and 3 add up to the secret.
    CHECK(excess_over_uniform(triples) > 1000);
  }
}

TEST_CASE("secret sharing: a program's wrong points and thresholds are refused") {
  if (!has_sodium()) return;
  const Key secret = random_secret();
  const std::vector<uint8_t> points{1, 2, 3}, repeated{1, 2, 1}, zero{1, 0};
  CHECK_THROWS_AS(split(secret, 0, points), InternalError);
  CHECK_THROWS_AS(split(secret, 4, points), InternalError);
  CHECK_THROWS_AS(split(secret, 2, repeated), InternalError);
  CHECK_THROWS_AS(split(secret, 2, zero), InternalError);
}

}  // namespace trireme::crypto
