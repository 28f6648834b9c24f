#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"

namespace trireme::cpu {
namespace {

/// The 53 bits of which random_uniform(key, index, step) is the multiple of 2^-53: the Philox4x32-10 of kernels/core/rng.h, spelled so that a loop
/// over `index` vectorises.
inline uint64_t uniform_bits(uint64_t key, uint64_t index, uint64_t step) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(step), c3 = static_cast<uint32_t>(step >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return (uint64_t{c1} << 32 | c0) >> 11;
}

/// `threshold` of 2^53 is the probability to drop.
void dropout_range(const float* x, uint64_t key, uint64_t first_index, uint64_t step, int64_t threshold, float scale, int64_t count, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bits = static_cast<int64_t>(uniform_bits(key, first_index + static_cast<uint64_t>(i), step));
    y[i] = x[i] * (bits >= threshold ? scale : 0.0f);
  }
}

}  // namespace

void fill(Context& ctx, double value, const Tensor& out) {
  float* const to = out.data<float>();
  const float x = static_cast<float>(value);
  parallel_for(ctx, out.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, x); });
}

void copy(Context& ctx, const Tensor& from, const Tensor& to) {
  const float* const source = from.data<float>();
  float* const target = to.data<float>();
  if (source == target) return;
  parallel_for(ctx, from.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) { std::copy(source + begin, source + end, target + begin); });
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  const float* const left = a.data<float>();
  const float* const right = b.data<float>();
  float* const to = out.data<float>();
  parallel_for(ctx, out.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = left[i] + right[i];
  });
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& out) { cpu::add(ctx, out, x, out); }

void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y) {
  const float* const in = x.data<float>();
  float* const out = y.data<float>();
  // u >= p in double is this comparison of integers: u is a multiple of 2^-53, and scaling p by a power of two is exact.
  const int64_t threshold = static_cast<int64_t>(std::ceil(std::ldexp(mask.probability, 53)));
  const float scale = static_cast<float>(1.0 / (1.0 - mask.probability));
  parallel_for(ctx, x.numel(), kElementsPerThread / 8, [=](int64_t begin, int64_t end) {
    dropout_range(in + begin, mask.key, mask.first_index + static_cast<uint64_t>(begin), mask.step, threshold, scale, end - begin, out + begin);
  });
}

}  // namespace trireme::cpu
