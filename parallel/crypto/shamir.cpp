#include "parallel/crypto/shamir.h"

#include <bitset>

#include "kernels/core/check.h"

namespace trireme::crypto {
namespace {

/// 1 / a for a public a that is not 0: a^254.
uint8_t gf_inverse(uint8_t a) {
  uint8_t power = 1;
  for (int i = 0; i < 254; ++i) power = gf_multiply(power, a);
  return power;
}

/// values = values * factor + terms, in each byte.
void gf_multiply_add(Key& values, uint8_t factor, const Key& terms) {
  for (size_t i = 0; i < kKeyBytes; ++i) values.data()[i] = static_cast<uint8_t>(gf_multiply(values.data()[i], factor) ^ terms.data()[i]);
}

/// What the share of `point` is multiplied by to interpolate at 0. Subtraction is exclusive or.
uint8_t lagrange_factor(uint8_t point, std::span<const Share> shares) {
  uint8_t numerator = 1, denominator = 1;
  for (const Share& other : shares)
    if (other.point != point) {
      numerator = gf_multiply(numerator, other.point);
      denominator = gf_multiply(denominator, static_cast<uint8_t>(other.point ^ point));
    }
  return gf_multiply(numerator, gf_inverse(denominator));
}

/// Points come from the program and not from messages.
void check_points(std::span<const uint8_t> points) {
  std::bitset<256> seen;
  for (const uint8_t point : points) {
    TRIREME_CHECK(point != 0 && !seen.test(point), "share at point ", int{point});
    seen.set(point);
  }
}

/// Horner's rule from the highest coefficient down to the secret.
Key polynomials_at(uint8_t point, const Key& secret, std::span<const Key> coefficients) {
  Key value;
  for (size_t i = coefficients.size(); i-- > 0;) gf_multiply_add(value, point, coefficients[i]);
  gf_multiply_add(value, point, secret);
  return value;
}

}  // namespace

std::vector<Share> split(const Key& secret, size_t threshold, std::span<const uint8_t> points) {
  TRIREME_CHECK(threshold >= 1 && threshold <= points.size(), "threshold ", threshold, " of ", points.size(), " shares");
  check_points(points);
  std::vector<Key> coefficients(threshold - 1);
  for (Key& coefficient : coefficients) draw({coefficient.data(), kKeyBytes});
  std::vector<Share> shares;
  for (const uint8_t point : points) shares.push_back({point, polynomials_at(point, secret, coefficients)});
  return shares;
}

Key combine(std::span<const Share> shares) {
  std::vector<uint8_t> points;
  for (const Share& share : shares) points.push_back(share.point);
  check_points(points);
  Key secret;
  for (const Share& share : shares) {
    const uint8_t factor = lagrange_factor(share.point, shares);
    for (size_t i = 0; i < kKeyBytes; ++i) secret.data()[i] ^= gf_multiply(share.value.data()[i], factor);
  }
  return secret;
}

}  // namespace trireme::crypto
