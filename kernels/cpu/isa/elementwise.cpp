#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class From, class To>
void convert_range(const From* from, int64_t count, To* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = rounded<To>(static_cast<float>(from[i]));
}

template <class T>
void scale_range(const T* x, float factor, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = rounded<T>(static_cast<float>(x[i]) * factor);
}

/// The words of `calls` Philox4x32-10 calls from `first` on, four each, as random_uniform32 of kernels/core/rng.h takes them.
inline void draw(uint64_t key, uint64_t first, uint64_t step, int64_t calls, uint32_t* words) {
#pragma omp simd
  for (int64_t i = 0; i < calls; ++i) {
    const uint64_t call = first + static_cast<uint64_t>(i);
    uint32_t c0 = static_cast<uint32_t>(call), c1 = static_cast<uint32_t>(call >> 32);
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
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

template <class T>
void drop_range(const T* x, const uint32_t* words, uint64_t threshold, float scale, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    // The mask is the sign of a difference of two numbers up to 2^32, because SSE2 cannot compare unsigned integers.
    const uint64_t dropped = (words[i] - threshold) >> 63;
    const uint32_t kept = __builtin_bit_cast(uint32_t, static_cast<float>(x[i]) * scale) & (static_cast<uint32_t>(dropped) - 1U);
    y[i] = rounded<T>(__builtin_bit_cast(float, kept));
  }
}

}  // namespace

template <class From, class To>
void convert(const Convert<From, To>& p, int64_t begin, int64_t end) {
  convert_range(p.from + begin, end - begin, p.to + begin);
}

template <class T>
void add(const Add<T>& p, int64_t begin, int64_t end) {
  add_range(p.a + begin, p.b + begin, end - begin, p.out + begin);
}

template <class T>
void scale(const Scale<T>& p, int64_t begin, int64_t end) {
  scale_range(p.x + begin, p.factor, end - begin, p.y + begin);
}

template <class T>
void accumulate(const Accumulate<T>& p, int64_t begin, int64_t end) {
  add_range(p.out + begin, p.x + begin, end - begin, p.out + begin);
}

template <class T>
void dropout(const Dropout<T>& p, int64_t begin, int64_t end) {
  constexpr int64_t kCalls = 64;
  uint32_t words[4 * kCalls];
  for (int64_t i = begin; i < end;) {
    const uint64_t index = p.first_index + static_cast<uint64_t>(i);
    const auto past = static_cast<int64_t>(index % 4);  // words of the first call that belong to elements before `index`
    const int64_t count = end - i < 4 * kCalls - past ? end - i : 4 * kCalls - past;
    draw(p.key, index / 4, p.step, (past + count + 3) / 4, words);
    drop_range(p.x + i, words + past, p.threshold, p.scale, count, p.y + i);
    i += count;
  }
}

template void convert<float, bfloat16>(const Convert<float, bfloat16>&, int64_t, int64_t);
template void convert<float, float16>(const Convert<float, float16>&, int64_t, int64_t);
template void convert<bfloat16, float>(const Convert<bfloat16, float>&, int64_t, int64_t);
template void convert<bfloat16, float16>(const Convert<bfloat16, float16>&, int64_t, int64_t);
template void convert<float16, float>(const Convert<float16, float>&, int64_t, int64_t);
template void convert<float16, bfloat16>(const Convert<float16, bfloat16>&, int64_t, int64_t);
TRIREME_INSTANCES(add, Add);
TRIREME_INSTANCES(scale, Scale);
TRIREME_INSTANCES(accumulate, Accumulate);
TRIREME_INSTANCES(dropout, Dropout);

}  // namespace trireme::cpu::TRIREME_ISA
