#pragma once
// Device version of kernels/core/rng.h, bit-identical: Philox4x32-10 (Salmon et al. 2011).
#include "kernels/cuda/device.cuh"

namespace trireme::cuda {

/// Four random words: kernels/core/rng.h's philox4x32({index lo, index hi, sub lo, sub hi}, {key lo, key hi}).
__device__ __forceinline__ uint4 random_words(uint64_t key, uint64_t index, uint64_t sub) {
  constexpr int kRounds = 10;
  uint4 c{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(sub), static_cast<uint32_t>(sub >> 32)};
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c.x;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c.z;
    c = uint4{static_cast<uint32_t>(product1 >> 32) ^ c.y ^ key0, static_cast<uint32_t>(product1), static_cast<uint32_t>(product0 >> 32) ^ c.w ^ key1,
              static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

__device__ __forceinline__ uint64_t join(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

/// random_uniform of kernels/core/rng.h.
__device__ __forceinline__ double random_uniform(uint64_t key, uint64_t index, uint64_t sub) {
  const uint4 words = random_words(key, index, sub);
  return static_cast<double>(join(words.x, words.y) >> 11) * 0x1p-53;
}

/// random_normal of kernels/core/rng.h from the same random bits, but with the device's log, sqrt and cos.
__device__ inline double random_normal(uint64_t key, uint64_t index) {
  constexpr double kTwoPi = 2 * 3.141592653589793238462643383279502884;
  const uint4 words = random_words(key, index, 0);
  const double u1 = (static_cast<double>(join(words.x, words.y) >> 11) + 1) * 0x1p-53;
  const double u2 = static_cast<double>(join(words.z, words.w) >> 11) * 0x1p-53;
  return sqrt(-2 * log(u1)) * cos(kTwoPi * u2);
}

}  // namespace trireme::cuda
