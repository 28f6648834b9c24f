#pragma once
// Secret sharing (A. Shamir, How to share a secret, CACM 22(11), 1979) of 32-byte secrets, byte by byte over GF(2^8) with the polynomial of AES,
// x^8 + x^4 + x^3 + x + 1.
//
// Each byte of the secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are random, and a share contains the
// values at one point. `threshold` shares determine the secret; fewer are consistent with every secret equally. Shares say nothing of their own about
// whether they are genuine: who combines them compares the secret with something known.
//
// Time and memory accesses do not depend on secrets or shares: products are computed bit by bit with masks, without tables and branches. They depend
// on points and the threshold, which are public.
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/crypto/aead.h"

namespace trireme::crypto {

/// The polynomials' values at `point`, which is not 0.
struct Share {
  uint8_t point = 0;
  Key value;
};

/// One share for each of `points`, which are distinct and not 0. Any `threshold` of them, at least 1 and at most all, give `secret`.
std::vector<Share> split(const Key& secret, size_t threshold, std::span<const uint8_t> points);

/// The secret of which `shares` are as many as its threshold, of distinct points.
Key combine(std::span<const Share> shares);

/// The product of two elements of GF(2^8).
constexpr uint8_t gf_multiply(uint8_t a, uint8_t b) {
  uint32_t product = 0, shifted = a;
  for (uint32_t bit = 0; bit < 8; ++bit) {
    product ^= shifted & (0U - ((b >> bit) & 1U));
    shifted = (shifted << 1) ^ (0x11BU & (0U - (shifted >> 7)));
  }
  return static_cast<uint8_t>(product);
}

}  // namespace trireme::crypto
