#include "kernels/core/rng.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/core/check.h"
#include "kernels/core/hash.h"

namespace trireme {
namespace {

constexpr uint32_t low_word(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t high_word(uint64_t value) { return static_cast<uint32_t>(value >> 32); }
constexpr uint64_t join(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

std::array<uint32_t, 4> random_words(uint64_t key, uint64_t index, uint64_t sub) {
  return philox4x32({low_word(index), high_word(index), low_word(sub), high_word(sub)}, {low_word(key), high_word(key)});
}

uint64_t splitmix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high_word(product1) ^ counter[1] ^ key[0], low_word(product1), high_word(product0) ^ counter[3] ^ key[1], low_word(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t random_key(uint64_t seed, std::string_view purpose) { return splitmix64(splitmix64(seed) ^ fnv1a(purpose)); }

uint64_t random_bits(uint64_t key, uint64_t index, uint64_t sub) {
  const auto words = random_words(key, index, sub);
  return join(words[0], words[1]);
}

double random_uniform(uint64_t key, uint64_t index, uint64_t sub) { return static_cast<double>(random_bits(key, index, sub) >> 11) * 0x1p-53; }

double random_uniform32(uint64_t key, uint64_t index, uint64_t sub) { return random_words(key, index / 4, sub)[index % 4] * 0x1p-32; }

double random_normal(uint64_t key, uint64_t index) {
  const auto words = random_words(key, index, 0);
  const double u1 = (static_cast<double>(join(words[0], words[1]) >> 11) + 1) * 0x1p-53;
  const double u2 = static_cast<double>(join(words[2], words[3]) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u1)) * std::cos(2 * std::numbers::pi * u2);
}

uint64_t random_permutation(uint64_t key, uint64_t index, uint64_t n) {
  TRIREME_CHECK(index < n, "index ", index, " is out of range for a permutation of ", n);
  constexpr uint64_t kRounds = 4;
  const int half_bits = (static_cast<int>(std::bit_width(n - 1)) + 1) / 2;
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & half_mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (random_bits(key, right, round) & half_mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits | right;
  } while (index >= n);
  return index;
}

}  // namespace trireme
