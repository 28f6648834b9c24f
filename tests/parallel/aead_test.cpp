// Authenticated encryption and the agreement on keys, against published vectors and against every changed bit.
#include "parallel/crypto/aead.h"

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/crypto/handshake.h"
#include "parallel/crypto/sodium.h"
#include "tests/support/catch.h"

namespace trireme::crypto {
namespace {

std::vector<uint8_t> from_digits(const std::string& digits) {
  std::vector<uint8_t> bytes(digits.size() / 2);
  REQUIRE(from_hex(digits, bytes));
  return bytes;
}

Key key_of(const std::string& digits) {
  Key key;
  std::ranges::copy(from_digits(digits), key.data());
  return key;
}

Nonce nonce_from(const std::string& digits) {
  Nonce nonce;
  std::ranges::copy(from_digits(digits), nonce.begin());
  return nonce;
}

std::string hex_of(std::span<const std::byte> bytes) { return hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}); }

struct Vector {
  Cipher cipher;
  std::string key, nonce, also, text, tag;
};

/// RFC 8439, section 2.8.2; test case 16 of McGrew and Viega, The Galois/Counter Mode of Operation.
std::vector<Vector> vectors() {
  const std::string sunscreen = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
  return {
      {Cipher::kChaCha20Poly1305, "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647",
       "50515253c0c1c2c3c4c5c6c7", hex({reinterpret_cast<const uint8_t*>(sunscreen.data()), sunscreen.size()}), "1ae10b594f09e26a7e902ecbd0600691"},
      {Cipher::kAes256Gcm, "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
       "feedfacedeadbeeffeedfacedeadbeefabaddad2",
       "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
       "76fc6ece0f4e1768cddf8853bb2d551b"}};
}

}  // namespace

TEST_CASE("encryption: frames have the tags of the published vectors, and no single changed bit opens") {
  for (const Vector& vector : vectors()) {
    if (!is_available(vector.cipher)) {
      WARN("skipped: no instructions for " << name_of(vector.cipher));
      continue;
    }
    INFO(name_of(vector.cipher));
    const Aead aead(vector.cipher, key_of(vector.key));
    const Nonce nonce = nonce_from(vector.nonce);
    const std::vector<uint8_t> also = from_digits(vector.also), text = from_digits(vector.text);
    std::vector<std::byte> frame(text.size() + kTagBytes), opened(text.size());
    aead.seal(nonce, also, std::as_bytes(std::span(text)), frame);
    CHECK(hex_of(std::span(frame).last(kTagBytes)) == vector.tag);
    REQUIRE(aead.open(nonce, also, frame, opened));
    CHECK(hex_of(opened) == vector.text);

    int opens = 0;
    const auto with_flips = [&](std::span<uint8_t> bytes, const auto& try_it) {
      for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
        opens += try_it() ? 1 : 0;
        bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      }
    };
    with_flips({reinterpret_cast<uint8_t*>(frame.data()), frame.size()}, [&] { return aead.open(nonce, also, frame, opened); });
    Nonce other_nonce = nonce;
    with_flips(other_nonce, [&] { return aead.open(other_nonce, also, frame, opened); });
    std::vector<uint8_t> other_also = also;
    with_flips(other_also, [&] { return aead.open(nonce, other_also, frame, opened); });
    std::vector<uint8_t> other_key = from_digits(vector.key);
    with_flips(other_key, [&] { return Aead(vector.cipher, key_of(hex(other_key))).open(nonce, also, frame, opened); });
    CHECK(opens == 0);
    for (const size_t length : {size_t{0}, kTagBytes - 1, frame.size() - 1}) {
      std::vector<std::byte> shorter(length > kTagBytes ? length - kTagBytes : 0);
      CHECK_FALSE(aead.open(nonce, also, std::span(frame).first(length), shorter));
    }
  }
}

TEST_CASE("encryption: nonces and lengths are little endian, and channels have nonces of their own") {
  CHECK(hex(nonce_of(0x01020304, 0x1112131415161718)) == "040302011817161514131211");
  CHECK(hex(length_of(0x0102)) == "0201000000000000");
  CHECK(nonce_of(1, 0) != nonce_of(0, 1));
}

TEST_CASE("encryption: two sides agree with the same key and context only, and never twice on the same secret") {
  const auto agree = [](const std::string& key, const std::string& other_key, const std::string& context, const std::string& other_context) {
    const Handshake first, second;
    auto a = first.agree(derive({}, key), second.hello(), Side::kFirst, context);
    auto b = second.agree(derive({}, other_key), first.hello(), Side::kSecond, other_context);
    REQUIRE((a && b));
    CHECK(a->accepts(b->proof()) == b->accepts(a->proof()));
    return a->accepts(b->proof());
  };
  CHECK(agree("k", "k", "ranks 0 and 1", "ranks 0 and 1"));
  CHECK_FALSE(agree("k", "other", "ranks 0 and 1", "ranks 0 and 1"));
  CHECK_FALSE(agree("k", "k", "ranks 0 and 1", "ranks 0 and 2"));

  const Key key = derive({}, "k");
  const Handshake one, two, again;
  const auto a = one.agree(key, two.hello(), Side::kFirst, "x"), b = two.agree(key, one.hello(), Side::kSecond, "x");
  CHECK_FALSE(a->accepts(a->proof()));                                  // its own proof, sent back
  const auto later = again.agree(key, two.hello(), Side::kFirst, "x");  // the recorded hello of an earlier run
  CHECK_FALSE(later->accepts(b->proof()));
  Hello strange = two.hello();
  strange[7] = '2';
  CHECK_FALSE(one.agree(key, strange, Side::kFirst, "x"));
  Hello nothing = two.hello();
  std::fill_n(nothing.begin() + kHelloMark.size() + 1, kPointBytes, uint8_t{0});  // a point of small order gives no secret
  CHECK_FALSE(one.agree(key, nothing, Side::kFirst, "x"));
  Hello weaker = two.hello();
  weaker[8] = static_cast<uint8_t>(Cipher::kChaCha20Poly1305);  // the ciphers of a hello, changed on the way
  if (is_available(Cipher::kAes256Gcm)) CHECK_FALSE(one.agree(key, weaker, Side::kFirst, "x")->accepts(b->proof()));

  // Each direction and purpose has a key of its own.
  std::array<std::byte, 5> text{};
  std::array<std::byte, 21> frame{};
  const Channel of_a = a->channel("p"), of_b = b->channel("p"), other = b->channel("q");
  of_a.sends.seal(nonce_of(0, 0), {}, text, frame);
  CHECK(of_b.receives.open(nonce_of(0, 0), {}, frame, text));
  CHECK_FALSE(of_a.receives.open(nonce_of(0, 0), {}, frame, text));
  CHECK_FALSE(other.receives.open(nonce_of(0, 0), {}, frame, text));
}

}  // namespace trireme::crypto
