#include "parallel/crypto/sodium.h"

#include <sodium.h>

#include "kernels/core/check.h"

namespace trireme::crypto {

static_assert(sizeof(Hash) == crypto_hash_sha256_BYTES && sizeof(PublicKey) == crypto_sign_ed25519_PUBLICKEYBYTES &&
              sizeof(Signature) == crypto_sign_ed25519_BYTES && kSeedBytes == crypto_sign_ed25519_SEEDBYTES);

namespace {

/// libsodium asks for this before its first use. Thread-safe.
void initialise() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) throw InternalError("libsodium cannot be initialised: the system provides no random numbers");
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

bool has_sodium() { return true; }
void require_sodium(const std::string& /*what*/) {}

struct Sha256::State {
  crypto_hash_sha256_state sodium;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  initialise();
  crypto_hash_sha256_init(&state_->sodium);
}
Sha256::~Sha256() = default;

void Sha256::update(const void* data, size_t bytes) { crypto_hash_sha256_update(&state_->sodium, static_cast<const unsigned char*>(data), bytes); }

Hash Sha256::finish() {
  Hash hash;
  crypto_hash_sha256_final(&state_->sodium, hash.data());
  return hash;
}

Hash sha256(std::string_view text) {
  Sha256 sum;
  sum.update(text);
  return sum.finish();
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

void hex(std::span<const uint8_t> bytes, std::span<uint8_t> digits) {
  sodium_bin2hex(reinterpret_cast<char*>(digits.data()), digits.size(), bytes.data(), bytes.size());
}

bool from_hex(std::string_view text, std::span<uint8_t> bytes) {
  size_t written = 0;
  if (text.size() != 2 * bytes.size() || text.find_first_not_of("0123456789abcdef") != text.npos) return false;
  return sodium_hex2bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &written, nullptr) == 0 && written == bytes.size();
}

SecretBytes::SecretBytes(size_t bytes) : size_(bytes) {
  initialise();
  data_.reset(static_cast<uint8_t*>(sodium_malloc(bytes)));
  if (!data_) throw IoError("no protected memory is left for a secret key");
  sodium_memzero(data_.get(), bytes);
}

void SecretBytes::Free::operator()(uint8_t* data) const { sodium_free(data); }

SigningKey::SigningKey() : secret_(crypto_sign_ed25519_SECRETKEYBYTES) {}

SigningKey SigningKey::generate() {
  SigningKey key;
  crypto_sign_ed25519_keypair(key.public_key_.data(), key.secret_.data());
  return key;
}

SigningKey SigningKey::from_seed(std::span<const uint8_t> seed) {
  TRIREME_CHECK(seed.size() == kSeedBytes, "seed of ", seed.size(), " bytes");
  SigningKey key;
  crypto_sign_ed25519_seed_keypair(key.public_key_.data(), key.secret_.data(), seed.data());
  return key;
}

SecretBytes SigningKey::seed() const {
  SecretBytes seed(kSeedBytes);
  crypto_sign_ed25519_sk_to_seed(seed.data(), secret_.data());
  return seed;
}

Signature SigningKey::sign(std::string_view message) const {
  Signature signature;
  crypto_sign_ed25519_detached(signature.data(), nullptr, bytes_of(message), message.size(), secret_.data());
  return signature;
}

bool is_signed_by(const PublicKey& key, std::string_view message, const Signature& signature) {
  initialise();
  return crypto_sign_ed25519_verify_detached(signature.data(), bytes_of(message), message.size(), key.data()) == 0;
}

}  // namespace trireme::crypto
