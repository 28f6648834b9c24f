#include <sodium.h>

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/crypto/aead.h"
#include "parallel/crypto/handshake.h"
#include "parallel/crypto/x25519.h"

namespace trireme::crypto {

static_assert(kTagBytes == crypto_aead_chacha20poly1305_IETF_ABYTES && kTagBytes == crypto_aead_aes256gcm_ABYTES);
static_assert(kKeyBytes == crypto_aead_chacha20poly1305_IETF_KEYBYTES && kKeyBytes == crypto_aead_aes256gcm_KEYBYTES);
static_assert(sizeof(Nonce) == crypto_aead_chacha20poly1305_IETF_NPUBBYTES && sizeof(Nonce) == crypto_aead_aes256gcm_NPUBBYTES);
static_assert(kPointBytes == crypto_scalarmult_BYTES && kPointBytes == crypto_scalarmult_SCALARBYTES && kPointBytes == kKeyBytes);

namespace {

/// libsodium asks for this before its first use. Thread-safe.
void initialise_aead() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) throw InternalError("libsodium cannot be initialised: the system provides no random numbers");
}

unsigned char* bytes_of(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
const unsigned char* bytes_of(std::span<const std::byte> bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

const char* name_of(Cipher cipher) { return cipher == Cipher::kAes256Gcm ? "AES-256-GCM" : "ChaCha20-Poly1305"; }

bool is_available(Cipher cipher) {
  initialise_aead();
  return cipher == Cipher::kChaCha20Poly1305 || crypto_aead_aes256gcm_is_available() != 0;
}

Key::Key(Key&& other) noexcept : bytes_(other.bytes_) { other.wipe(); }
Key& Key::operator=(Key&& other) noexcept {
  if (this == &other) return *this;
  bytes_ = other.bytes_;
  other.wipe();
  return *this;
}
Key::~Key() { wipe(); }
void Key::wipe() { sodium_memzero(bytes_.data(), bytes_.size()); }

void wipe(std::span<uint8_t> bytes) { sodium_memzero(bytes.data(), bytes.size()); }

void draw(std::span<uint8_t> bytes) {
  initialise_aead();
  randombytes_buf(bytes.data(), bytes.size());
}

Key derive(const Key& key, std::string_view purpose) {
  initialise_aead();
  Key derived;
  crypto_generichash(derived.data(), kKeyBytes, reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(), key.data(), kKeyBytes);
  return derived;
}

void digest(std::span<const uint8_t> text, Key& key) { crypto_generichash(key.data(), kKeyBytes, text.data(), text.size(), nullptr, 0); }

void keystream(const Key& key, uint64_t nonce, uint64_t block, std::span<uint8_t> bytes) {
  static_assert(crypto_stream_chacha20_KEYBYTES == kKeyBytes && crypto_stream_chacha20_NONCEBYTES == sizeof nonce);
  initialise_aead();
  std::array<uint8_t, sizeof nonce> name;
  put_little_endian(nonce, std::span(name));
  std::fill(bytes.begin(), bytes.end(), uint8_t{0});
  crypto_stream_chacha20_xor_ic(bytes.data(), bytes.data(), bytes.size(), name.data(), block, key.data());
}

/// The schedule of round keys of AES, or the key itself.
struct Aead::State {
  State(Cipher of, const Key& key) : cipher(of) {
    if (cipher == Cipher::kAes256Gcm)
      crypto_aead_aes256gcm_beforenm(&schedule, key.data());
    else
      std::copy_n(key.data(), kKeyBytes, plain.begin());
  }
  ~State() {
    sodium_memzero(&schedule, sizeof schedule);
    sodium_memzero(plain.data(), plain.size());
  }
  Cipher cipher;
  crypto_aead_aes256gcm_state schedule{};
  std::array<uint8_t, kKeyBytes> plain{};
};

Aead::Aead(Cipher cipher, const Key& key) {
  TRIREME_CHECK(is_available(cipher), name_of(cipher), " on a CPU without instructions for it");
  state_ = std::make_unique<State>(cipher, key);
}
Aead::Aead(Aead&& other) noexcept = default;
Aead& Aead::operator=(Aead&& other) noexcept = default;
Aead::~Aead() = default;

void Aead::seal(const Nonce& nonce, std::span<const uint8_t> also, std::span<const std::byte> text, std::span<std::byte> frame) const {
  TRIREME_CHECK(frame.size() == text.size() + kTagBytes, "frame of ", frame.size(), " bytes for a text of ", text.size());
  // The limit of AES-256-GCM, which is the lower one: 2^32 - 2 blocks.
  TRIREME_CHECK(text.size() <= crypto_aead_aes256gcm_MESSAGEBYTES_MAX, "a message of ", text.size(), " bytes is too long for one frame");
  if (state_->cipher == Cipher::kAes256Gcm)
    crypto_aead_aes256gcm_encrypt_afternm(bytes_of(frame), nullptr, bytes_of(text), text.size(), also.data(), also.size(), nullptr, nonce.data(),
                                          &state_->schedule);
  else
    crypto_aead_chacha20poly1305_ietf_encrypt(bytes_of(frame), nullptr, bytes_of(text), text.size(), also.data(), also.size(), nullptr, nonce.data(),
                                              state_->plain.data());
}

bool Aead::open(const Nonce& nonce, std::span<const uint8_t> also, std::span<const std::byte> frame, std::span<std::byte> text) const {
  if (frame.size() != text.size() + kTagBytes) return false;
  if (state_->cipher == Cipher::kAes256Gcm)
    return crypto_aead_aes256gcm_decrypt_afternm(bytes_of(text), nullptr, nullptr, bytes_of(frame), frame.size(), also.data(), also.size(),
                                                 nonce.data(), &state_->schedule) == 0;
  return crypto_aead_chacha20poly1305_ietf_decrypt(bytes_of(text), nullptr, nullptr, bytes_of(frame), frame.size(), also.data(), also.size(),
                                                   nonce.data(), state_->plain.data()) == 0;
}

// ---- x25519.h ----

Point public_point(const Key& secret) {
  initialise_aead();
  Point point;
  crypto_scalarmult_base(point.data(), secret.data());
  return point;
}

bool multiply(const Key& secret, const Point& other, Key& product) {
  initialise_aead();
  return crypto_scalarmult(product.data(), secret.data(), other.data()) == 0;
}

bool equal(const Key& a, const Key& b) { return sodium_memcmp(a.data(), b.data(), kKeyBytes) == 0; }

// ---- handshake.h ----

Handshake::Handshake() {
  initialise_aead();
  std::copy_n(kHelloMark.begin(), kHelloMark.size(), hello_.begin());
  hello_[kHelloMark.size()] = static_cast<uint8_t>(Cipher::kChaCha20Poly1305);
  if (is_available(Cipher::kAes256Gcm)) hello_[kHelloMark.size()] |= static_cast<uint8_t>(Cipher::kAes256Gcm);
  const std::span<uint8_t> rest = std::span(hello_).subspan(kHelloMark.size() + 1);
  draw({ephemeral_.data(), kKeyBytes});
  crypto_scalarmult_base(rest.data(), ephemeral_.data());
  draw(rest.subspan(kPointBytes));
}

std::optional<Agreement> Handshake::agree(const Key& shared, const Hello& other, Side side, std::string_view context) const {
  if (!std::equal(kHelloMark.begin(), kHelloMark.end(), other.begin())) return std::nullopt;
  Key point;
  if (crypto_scalarmult(point.data(), ephemeral_.data(), other.data() + kHelloMark.size() + 1) != 0) return std::nullopt;
  const Hello& first = side == Side::kFirst ? hello_ : other;
  const Hello& second = side == Side::kFirst ? other : hello_;
  crypto_generichash_state state;
  Agreement agreement;
  const uint64_t length = context.size();
  crypto_generichash_init(&state, shared.data(), kKeyBytes, kKeyBytes);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length), sizeof length);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(context.data()), context.size());
  crypto_generichash_update(&state, first.data(), first.size());
  crypto_generichash_update(&state, second.data(), second.size());
  crypto_generichash_update(&state, point.data(), kPointBytes);
  crypto_generichash_final(&state, agreement.secret.data(), kKeyBytes);
  sodium_memzero(&state, sizeof state);
  const int both = hello_[kHelloMark.size()] & other[kHelloMark.size()];
  agreement.cipher = (both & static_cast<int>(Cipher::kAes256Gcm)) != 0 ? Cipher::kAes256Gcm : Cipher::kChaCha20Poly1305;
  agreement.side = side;
  return agreement;
}

Proof Agreement::proof(Side of) const {
  const Key key = derive(secret, of == Side::kFirst ? "proof of the first side" : "proof of the second side");
  Proof bytes;
  std::copy_n(key.data(), bytes.size(), bytes.begin());
  return bytes;
}

bool Agreement::accepts(const Proof& other) const {
  const Proof expected = proof(side == Side::kFirst ? Side::kSecond : Side::kFirst);
  return sodium_memcmp(expected.data(), other.data(), expected.size()) == 0;
}

Channel Agreement::channel(std::string_view purpose) const {
  const auto from = [&](Side sender) {
    return Aead(cipher, derive(secret, concat(sender == Side::kFirst ? "from the first side: " : "from the second side: ", purpose)));
  };
  return {from(side), from(side == Side::kFirst ? Side::kSecond : Side::kFirst)};
}

}  // namespace trireme::crypto
