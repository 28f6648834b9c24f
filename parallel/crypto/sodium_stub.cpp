// For builds without libsodium.
#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"

namespace trireme::crypto {

bool has_sodium() { return false; }

void require_sodium(const std::string& what) {
  throw ConfigError(what + ": this build has no libsodium, which does its cryptography; install libsodium-dev, then configure and build again");
}

struct Sha256::State {};
Sha256::Sha256() { require_sodium("SHA-256"); }
Sha256::~Sha256() = default;
void Sha256::update(const void* /*data*/, size_t /*bytes*/) {}
Hash Sha256::finish() { return {}; }

Hash sha256(std::string_view /*text*/) {
  require_sodium("SHA-256");
  return {};
}

std::string hex(std::span<const uint8_t> /*bytes*/) {
  require_sodium("hexadecimal digits");
  return {};
}

void hex(std::span<const uint8_t> /*bytes*/, std::span<uint8_t> /*digits*/) { require_sodium("hexadecimal digits"); }

bool from_hex(std::string_view /*text*/, std::span<uint8_t> /*bytes*/) {
  require_sodium("hexadecimal digits");
  return false;
}

SecretBytes::SecretBytes(size_t bytes) : size_(bytes) { require_sodium("secret key"); }
void SecretBytes::Free::operator()(uint8_t* /*data*/) const {}

SigningKey::SigningKey() : secret_(0) {}
SigningKey SigningKey::generate() { return {}; }
SigningKey SigningKey::from_seed(std::span<const uint8_t> /*seed*/) { return {}; }
SecretBytes SigningKey::seed() const { return SecretBytes(0); }
Signature SigningKey::sign(std::string_view /*message*/) const { return {}; }

bool is_signed_by(const PublicKey& /*key*/, std::string_view /*message*/, const Signature& /*signature*/) {
  require_sodium("signature");
  return false;
}

}  // namespace trireme::crypto
