#include "parallel/crypto/private_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"

namespace trireme::crypto {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kBlockWords = kBlockBytes / sizeof(uint64_t);
constexpr size_t kBlocks = 64;  ///< number of keystream blocks that are drawn at a time
constexpr size_t kWords = kBlocks * kBlockWords;

/// An integer below 2^52 as a double; unlike a conversion it is an instruction of every vector unit.
inline double small_to_double(uint64_t integer) { return std::bit_cast<double>(integer | 0x4330000000000000U) - 0x1p52; }

/// ((word >> 11) + 1) 2^-53, in (0, 1].
inline double uniform(uint64_t word) { return (small_to_double(word >> 37) * 0x1p26 + (small_to_double((word >> 11) & 0x3FFFFFF) + 1)) * 0x1p-53; }

/// ln(x) for a positive normal x. The reduction to [sqrt(1/2), sqrt(2)) and the polynomial are those of fdlibm's log; error below 1 ulp.
inline double log_of(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x) + 0x0009'5F62'0000'0000U;
  const double k = small_to_double(bits >> 52) - 1023;
  const double m = std::bit_cast<double>((bits & 0x000F'FFFF'FFFF'FFFFU) + 0x3FE6'A09E'0000'0000U);
  const double f = m - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return s * (half + (even + odd)) + k * 1.90821492927058770002e-10 - half + f + k * 6.93147180369123816490e-01;
}

/// ln(1 - rate) for a rate in (0, 1).
double log_of_rest(double rate) {
  if (rate >= 0.5) return log_of(1 - rate);  // the difference is exact
  const double z = rate / (2 - rate), square = z * z;
  double sum = 0;
  for (int i = 39; i >= 1; i -= 2) sum = sum * square + 1.0 / i;  // of artanh; z is at most 1/3
  return -2 * z * sum;
}

/// Two normal numbers from each pair of words. The polynomials for sine and cosine on [-pi/4, pi/4] are those of fdlibm.
void box_muller(const uint64_t* words, double* values) {
  for (size_t i = 0; i < kWords; i += 2) {
    const uint64_t a = words[i], b = words[i + 1];
    const double r = std::sqrt(-2 * log_of(uniform(a)));
    const uint64_t quadrant = b >> 62;
    const double fraction = (small_to_double((b >> 35) & 0x7FFFFFF) * 0x1p26 + small_to_double((b >> 9) & 0x3FFFFFF)) * 0x1p-53;
    const double t = (fraction - 0.5) * 1.57079632679489661923, z = t * t;
    const double sine = t + t * z *
                                (-1.66666666666666324348e-01 +
                                 z * (8.33333333332248946124e-03 +
                                      z * (-1.98412698298579493134e-04 +
                                           z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
    const double cosine = 1 - 0.5 * z +
                          z * z *
                              (4.16666666666666019037e-02 +
                               z * (-1.38888888888741095749e-03 +
                                    z * (2.48015872894767294178e-05 +
                                         z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
    const uint64_t sine_bits = std::bit_cast<uint64_t>(sine), cosine_bits = std::bit_cast<uint64_t>(cosine);
    const uint64_t swapped = (sine_bits ^ cosine_bits) & (0 - (quadrant & 1));  // a quarter turn exchanges them
    values[i] = r * std::bit_cast<double>((cosine_bits ^ swapped) ^ (((quadrant + 1) & 2) << 62));
    values[i + 1] = r * std::bit_cast<double>((sine_bits ^ swapped) ^ ((quadrant & 2) << 62));
  }
}

/// Some words of a stream, which are overwritten at the end.
class Words {
 public:
  Words() = default;
  ~Words() { wipe({reinterpret_cast<uint8_t*>(words_.data()), sizeof words_}); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  void draw(const Key& key, int64_t step, uint64_t block, size_t blocks = kBlocks) {
    keystream(key, static_cast<uint64_t>(step), block, {reinterpret_cast<uint8_t*>(words_.data()), blocks * kBlockBytes});
    if constexpr (std::endian::native == std::endian::big)
      for (uint64_t& word : words_) word = __builtin_bswap64(word);
  }
  const uint64_t* data() const { return words_.data(); }
  uint64_t operator[](size_t i) const { return words_[i]; }

 private:
  alignas(64) std::array<uint64_t, kWords> words_{};
};

}  // namespace

PrivateRandom::PrivateRandom(const Key& key)
    : noise_(derive(key, "privacy noise")),
      samples_(derive(key, "privacy samples")),
      ranks_(derive(key, "privacy ranks")),
      mark_(derive(key, "privacy fingerprint")) {}

PrivateRandom::PrivateRandom(const PrivateRandom& other) { *this = other; }

PrivateRandom& PrivateRandom::operator=(const PrivateRandom& other) {
  if (this == &other) return *this;
  for (Key PrivateRandom::*const key : {&PrivateRandom::noise_, &PrivateRandom::samples_, &PrivateRandom::ranks_, &PrivateRandom::mark_})
    std::copy_n((other.*key).data(), kKeyBytes, (this->*key).data());
  return *this;
}

void PrivateRandom::normal(std::string_view name, int64_t step, int64_t first, std::span<double> values) const {
  TRIREME_CHECK(step >= 0 && first >= 0, "step ", step, ", value ", first);
  const Key key = derive(noise_, name);
  Words words;
  alignas(64) std::array<double, kWords> normals;
  uint64_t block = static_cast<uint64_t>(first) / kBlockWords;
  size_t skip = static_cast<size_t>(first) % kBlockWords;
  for (size_t done = 0; done < values.size(); block += kBlocks, skip = 0) {
    const size_t count = std::min(values.size() - done, kWords - skip);
    words.draw(key, step, block, (skip + count + kBlockWords - 1) / kBlockWords);
    box_muller(words.data(), normals.data());
    std::copy_n(normals.begin() + skip, count, values.begin() + done);
    done += count;
  }
  wipe({reinterpret_cast<uint8_t*>(normals.data()), sizeof normals});
}

std::vector<int64_t> PrivateRandom::poisson_sample(int64_t step, int64_t n, double rate) const {
  TRIREME_CHECK(step >= 0 && n >= 0 && rate >= 0 && rate <= 1, "step ", step, ", ", n, " samples, rate ", rate);
  std::vector<int64_t> sample;
  if (rate == 0) return sample;
  if (rate == 1) {
    for (int64_t i = 0; i < n; ++i) sample.push_back(i);
    return sample;
  }
  const double rest = log_of_rest(rate);
  Words words;
  uint64_t block = 0;
  size_t next = kWords;
  for (int64_t index = 0; index < n; ++index) {
    if (next == kWords) {
      words.draw(samples_, step, block);
      block += kBlocks;
      next = 0;
    }
    const double skipped = std::floor(log_of(uniform(words[next++])) / rest);
    if (!(skipped < static_cast<double>(n - index))) break;
    index += static_cast<int64_t>(skipped);
    if (index < n) sample.push_back(index);
  }
  return sample;
}

std::vector<int> PrivateRandom::ranks_of(int64_t step, std::span<const int64_t> indices, int ranks) const {
  TRIREME_CHECK(step >= 0 && ranks > 0, "step ", step, ", ", ranks, " ranks");
  std::vector<int> found;
  Words words;
  for (const int64_t index : indices) {
    const auto place = static_cast<uint64_t>(index);
    words.draw(ranks_, step, place / kBlockWords, 1);
    found.push_back(static_cast<int>(words[place % kBlockWords] % static_cast<uint64_t>(ranks)));
  }
  return found;
}

std::string PrivateRandom::fingerprint() const { return hex({mark_.data(), 8}); }

}  // namespace trireme::crypto
