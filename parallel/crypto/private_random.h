#pragma once
// Random numbers for differentially private training, from ChaCha20 with secret keys. Each is a function of (key, name, step, index), so that all
// layouts draw the same ones, and nobody without the key can predict them. In a build without libsodium every call throws what require_sodium() throws.
//
// All values come from streams of 64-bit words, which are the bytes of keystream() read as little-endian integers:
// - normals of `name` at `step`: key derive(derive(key, "privacy noise"), name), nonce `step`
// - samples at `step`: key derive(key, "privacy samples"), nonce `step`
// - ranks of samples at `step`: key derive(key, "privacy ranks"), nonce `step`
// Every step of the computation is an operation of IEEE 754 that is rounded to double, without functions of the system, so that all ranks compute the
// same bits.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/crypto/aead.h"

namespace trireme::crypto {

class PrivateRandom {
 public:
  explicit PrivateRandom(const Key& key);
  /// A copy has the same values. Each copy overwrites its keys at its end.
  PrivateRandom(const PrivateRandom& other);
  PrivateRandom& operator=(const PrivateRandom& other);
  ~PrivateRandom() = default;

  /// Values first, first + 1, ... of the sequence of standard normal numbers of (name, step).
  ///
  /// Values 2j and 2j + 1 are r cos(t) and r sin(t) (Box-Muller) of words a = 2j and b = 2j + 1 of the stream:
  ///   r = sqrt(-2 ln(((a >> 11) + 1) 2^-53)), t = pi/2 ((b >> 62) + ((b >> 9) mod 2^53) 2^-53 - 1/2), to about 1e-15.
  /// No value is beyond 8.58, where a real normal number is with a probability of 1e-17. They are doubles, not real numbers: an attack on the lowest bits
  /// of what they are added to (Mironov 2012) is out of the scope of this class.
  void normal(std::string_view name, int64_t step, int64_t first, std::span<double> values) const;

  /// The indices below `n` that step `step` samples, each with probability `rate` (0 to 1) independently of all others. Ascending. Takes time in
  /// proportion to their number.
  ///
  /// Before each sampled index floor(ln(((w >> 11) + 1) 2^-53) / ln(1 - rate)) indices are skipped, w being the next word of the stream. The probability of
  /// skipping at least g differs from (1 - rate)^g by at most 2^-46 of it plus 2^-53.
  std::vector<int64_t> poisson_sample(int64_t step, int64_t n, double rate) const;

  /// For each of the indices, a rank below `ranks`, each with the same probability and independently of all other indices and steps: word `index` of the
  /// stream modulo `ranks`.
  std::vector<int> ranks_of(int64_t step, std::span<const int64_t> indices, int ranks) const;

  /// 16 hexadecimal digits that identify the key and tell nothing else about it.
  std::string fingerprint() const;

 private:
  Key noise_, samples_, ranks_, mark_;
};

}  // namespace trireme::crypto
