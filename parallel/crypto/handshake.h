#pragma once
// How two processes that have the same pre-shared key agree on keys of one connection.
//
// Each side sends one hello in clear: kHelloMark, a byte of the ciphers that it can use, an ephemeral X25519 public key (RFC 7748) and 32 random bytes.
// The secret of the connection is BLAKE2b-256, keyed with the pre-shared key, of: the length and the text of a context that both sides know, both
// hellos, and the X25519 product. So it is another one for each connection, and nobody without the pre-shared key can compute it; who learns the
// pre-shared key later cannot read what was recorded. Each side then sends a proof that it has the secret. All later keys are derived from it.
#include <array>
#include <optional>
#include <string_view>

#include "parallel/crypto/aead.h"
#include "parallel/crypto/x25519.h"

namespace trireme::crypto {

inline constexpr std::array<uint8_t, 8> kHelloMark{'t', 'r', 'i', 'r', 'e', 'm', 'e', '1'};
using Hello = std::array<uint8_t, kHelloMark.size() + 1 + kPointBytes + 32>;
using Proof = std::array<uint8_t, 32>;

/// The two ends of a connection have different sides.
enum class Side : uint8_t { kFirst, kSecond };

/// One key for each direction.
struct Channel {
  Aead sends, receives;
};

/// What two sides have agreed on, if the other one has the same pre-shared key: accepts() finds out.
struct Agreement {
  Cipher cipher = Cipher::kChaCha20Poly1305;  ///< the fastest that both have
  Side side = Side::kFirst;                   ///< of this process
  Key secret;

  Proof proof() const { return proof(side); }  ///< for the other side
  bool accepts(const Proof& other) const;
  /// Keys for `purpose`; other purposes have independent keys.
  Channel channel(std::string_view purpose) const;

 private:
  Proof proof(Side of) const;
};

/// This side of one handshake.
class Handshake {
 public:
  Handshake();
  const Hello& hello() const { return hello_; }
  /// `shared`: the pre-shared key. Returns nothing if `other` is no hello of this version.
  std::optional<Agreement> agree(const Key& shared, const Hello& other, Side side, std::string_view context) const;

 private:
  Hello hello_{};
  Key ephemeral_;
};

}  // namespace trireme::crypto
