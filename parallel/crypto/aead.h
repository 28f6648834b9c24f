#pragma once
// Authenticated encryption with associated data, and the keys for it, all computed by libsodium. In a build without it every call throws what
// require_sodium() throws.
//
// Ciphers: ChaCha20-Poly1305 (RFC 8439), and AES-256-GCM (NIST SP 800-38D) on CPUs that have instructions for it. A frame is the text, encrypted, and a
// tag of 16 bytes behind it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace trireme::crypto {

inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kKeyBytes = 32;
using Nonce = std::array<uint8_t, 12>;
using Length = std::array<uint8_t, 8>;

template <size_t N>
constexpr void put_little_endian(uint64_t number, std::span<uint8_t, N> bytes) {
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(number & 0xFF);
    number >>= 8;
  }
}
/// The nonce of the `number`-th message of a channel: 4 bytes and 8 bytes, little endian.
constexpr Nonce nonce_of(uint32_t channel, uint64_t number) {
  Nonce nonce{};
  put_little_endian(channel, std::span(nonce).first<4>());
  put_little_endian(number, std::span(nonce).subspan<4>());
  return nonce;
}
/// 8 bytes, little endian: what is authenticated with a message.
constexpr Length length_of(size_t bytes) {
  Length length{};
  put_little_endian(bytes, std::span(length));
  return length;
}

enum class Cipher : uint8_t { kChaCha20Poly1305 = 1, kAes256Gcm = 2 };
const char* name_of(Cipher cipher);  ///< "ChaCha20-Poly1305"
bool is_available(Cipher cipher);    ///< on this CPU

/// A secret of 32 bytes, which is overwritten at the end. Move-only.
class Key {
 public:
  Key() = default;  ///< zeros
  Key(Key&& other) noexcept;
  Key& operator=(Key&& other) noexcept;
  ~Key();
  uint8_t* data() { return bytes_.data(); }
  const uint8_t* data() const { return bytes_.data(); }

 private:
  void wipe();
  std::array<uint8_t, kKeyBytes> bytes_{};
};

/// Overwrites `bytes` in a way that compilers keep.
void wipe(std::span<uint8_t> bytes);
/// Fills `bytes` with random numbers for secrets.
void draw(std::span<uint8_t> bytes);

/// A key that follows from `key` and `purpose`: BLAKE2b-256 of `purpose`, keyed with `key`. Another purpose gives an independent key.
Key derive(const Key& key, std::string_view purpose);

/// BLAKE2b-256 of `text`, for secrets.
void digest(std::span<const uint8_t> text, Key& key);

/// The keystream of ChaCha20 as D. J. Bernstein defined it, with a nonce and a counter of 64 bits each: block `block` is 64 bytes, and `bytes` are filled
/// from its first byte on. `bytes` may end within a block.
void keystream(const Key& key, uint64_t nonce, uint64_t block, std::span<uint8_t> bytes);

/// Encrypts and decrypts with one key. The caller must never use a nonce twice for sealing with one key.
class Aead {
 public:
  Aead(Cipher cipher, const Key& key);
  Aead(Aead&& other) noexcept;
  Aead& operator=(Aead&& other) noexcept;
  ~Aead();

  /// `frame` has kTagBytes bytes more than `text` and does not overlap it. `also` is authenticated with it and not sent.
  void seal(const Nonce& nonce, std::span<const uint8_t> also, std::span<const std::byte> text, std::span<std::byte> frame) const;
  /// The opposite. Returns false, with `text` unspecified, unless `frame` was sealed with this key, nonce and `also`.
  [[nodiscard]] bool open(const Nonce& nonce, std::span<const uint8_t> also, std::span<const std::byte> frame, std::span<std::byte> text) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::crypto
