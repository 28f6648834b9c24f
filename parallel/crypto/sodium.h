#pragma once
// Hashes and signatures, all computed by libsodium. In a build without it has_sodium() is false and everything else throws what require_sodium()
// throws.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::crypto {

using Hash = std::array<uint8_t, 32>;       ///< SHA-256
using PublicKey = std::array<uint8_t, 32>;  ///< Ed25519
using Signature = std::array<uint8_t, 64>;  ///< Ed25519
inline constexpr size_t kSeedBytes = 32;    ///< size of the seed of an Ed25519 key pair

bool has_sodium();
/// `what`: the beginning of the message, such as a key of the configuration. Errors: ConfigError if this build has no libsodium.
void require_sodium(const std::string& what);

/// SHA-256 of a text that comes in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  Hash finish();  ///< call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};
Hash sha256(std::string_view text);

/// Lower-case hexadecimal digits.
std::string hex(std::span<const uint8_t> bytes);
/// The same for secrets: `digits` has room for two digits a byte and a terminating zero.
void hex(std::span<const uint8_t> bytes, std::span<uint8_t> digits);
/// Fills `bytes` from exactly twice as many lower-case hexadecimal digits; false for any other text. Upper-case digits are refused, so that a value
/// has one text only.
bool from_hex(std::string_view text, std::span<uint8_t> bytes);

/// Memory for secrets: it is not swapped out where the system allows that, does not enter core dumps, and is overwritten at the end.
class SecretBytes {
 public:
  /// Errors: IoError if there is no such memory.
  explicit SecretBytes(size_t bytes);
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<uint8_t> span() { return {data(), size_}; }

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t, Free> data_;
  size_t size_;
};

/// The secret key of an Ed25519 key pair.
class SigningKey {
 public:
  static SigningKey generate();
  /// `seed`: kSeedBytes bytes, from which the key pair follows.
  static SigningKey from_seed(std::span<const uint8_t> seed);

  const PublicKey& public_key() const { return public_key_; }
  SecretBytes seed() const;
  Signature sign(std::string_view message) const;

 private:
  SigningKey();
  SecretBytes secret_;
  PublicKey public_key_{};
};

/// True if `signature` is that of `message` by the owner of the public key.
bool is_signed_by(const PublicKey& key, std::string_view message, const Signature& signature);

}  // namespace trireme::crypto
