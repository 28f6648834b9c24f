#pragma once
// Diffie-Hellman on Curve25519 (X25519, RFC 7748), computed by libsodium. In a build without it every call throws what require_sodium() throws.
#include <array>
#include <cstddef>
#include <cstdint>

#include "parallel/crypto/aead.h"

namespace trireme::crypto {

inline constexpr size_t kPointBytes = 32;
using Point = std::array<uint8_t, kPointBytes>;  ///< an X25519 public key

/// The public key of `secret`, which is any 32 random bytes.
Point public_point(const Key& secret);

/// The product that the owners of two key pairs share. It is no key yet: derive() makes keys of it. Returns false, with `product` unspecified, if
/// `other` is a point of small order, whose product everybody knows.
[[nodiscard]] bool multiply(const Key& secret, const Point& other, Key& product);

/// Compares two secrets in a time that does not depend on them.
bool equal(const Key& a, const Key& b);

}  // namespace trireme::crypto
