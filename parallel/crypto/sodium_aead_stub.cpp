// For builds without libsodium.
#include "parallel/crypto/aead.h"
#include "parallel/crypto/handshake.h"
#include "parallel/crypto/sodium.h"
#include "parallel/crypto/x25519.h"

namespace trireme::crypto {

const char* name_of(Cipher cipher) { return cipher == Cipher::kAes256Gcm ? "AES-256-GCM" : "ChaCha20-Poly1305"; }
bool is_available(Cipher /*cipher*/) { return false; }

Key::Key(Key&& other) noexcept : bytes_(other.bytes_) {}
Key& Key::operator=(Key&& other) noexcept {
  bytes_ = other.bytes_;
  return *this;
}
Key::~Key() = default;

void wipe(std::span<uint8_t> /*bytes*/) {}
void draw(std::span<uint8_t> /*bytes*/) { require_sodium("random numbers"); }

Key derive(const Key& /*key*/, std::string_view /*purpose*/) {
  require_sodium("derived key");
  return {};
}

void digest(std::span<const uint8_t> /*text*/, Key& /*key*/) { require_sodium("digest"); }

void keystream(const Key& /*key*/, uint64_t /*nonce*/, uint64_t /*block*/, std::span<uint8_t> /*bytes*/) { require_sodium("keystream"); }

struct Aead::State {};
Aead::Aead(Cipher /*cipher*/, const Key& /*key*/) { require_sodium("encryption"); }
Aead::Aead(Aead&& other) noexcept = default;
Aead& Aead::operator=(Aead&& other) noexcept = default;
Aead::~Aead() = default;
void Aead::seal(const Nonce& /*nonce*/, std::span<const uint8_t> /*also*/, std::span<const std::byte> /*text*/,
                std::span<std::byte> /*frame*/) const {}
bool Aead::open(const Nonce& /*nonce*/, std::span<const uint8_t> /*also*/, std::span<const std::byte> /*frame*/,
                std::span<std::byte> /*text*/) const {
  return false;
}

Point public_point(const Key& /*secret*/) {
  require_sodium("public key");
  return {};
}

bool multiply(const Key& /*secret*/, const Point& /*other*/, Key& /*product*/) {
  require_sodium("key agreement");
  return false;
}

bool equal(const Key& /*a*/, const Key& /*b*/) {
  require_sodium("comparison of keys");
  return false;
}

Handshake::Handshake() { require_sodium("handshake"); }
std::optional<Agreement> Handshake::agree(const Key& /*shared*/, const Hello& /*other*/, Side /*side*/, std::string_view /*context*/) const {
  return std::nullopt;
}
Proof Agreement::proof(Side /*of*/) const { return {}; }
bool Agreement::accepts(const Proof& /*other*/) const { return false; }
Channel Agreement::channel(std::string_view /*purpose*/) const { return {Aead(cipher, secret), Aead(cipher, secret)}; }

}  // namespace trireme::crypto
