// Block encodings of gradients (kernels/ops/compress.h). The bits are those of kernels/reference/compress.h, except the order of the sums of kSign.
#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

constexpr int64_t kStrip = 256;  // codes that are computed before they are packed; a multiple of 8

/// v = g + e, into `v`, which may be either.
inline void add_error(const float* g, const float* e, int64_t count, float* v) {
  if (e == nullptr) {
    if (v != g)
      for (int64_t i = 0; i < count; ++i) v[i] = g[i];
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) v[i] = g[i] + e[i];
}

/// integer_scale of kernels/reference/compress.h, after the division.
inline float rounded_scale(float scale) {
  if (scale < __FLT_MIN__) return 0;
  if (!(scale <= __FLT_MAX__)) return scale;
  return __builtin_bit_cast(float, (__builtin_bit_cast(int32_t, scale) + 0x7F) & ~0x7F);
}

inline float integer_scale(const float* v, int64_t count, int limit) {
  int32_t largest = 0;  // magnitudes order as signed integers, and a NaN is larger than every number
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, v[i]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  return rounded_scale(__builtin_bit_cast(float, largest) / static_cast<float>(limit));
}

/// codes = nearest multiples of the scale, ties to even. Adding 1.5 * 2^23 rounds to an integer.
inline void integer_codes(const float* v, int64_t count, float scale, int limit, int32_t* codes) {
  const bool usable = scale > 0 && scale <= __FLT_MAX__;
  if (!usable) {
    for (int64_t i = 0; i < count; ++i) codes[i] = 0;
    return;
  }
  constexpr float kRound = 12582912;
  const auto top = static_cast<float>(limit);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float code = v[i] / scale + kRound;
    code -= kRound;
    code = code > top ? top : code;
    code = code < -top ? -top : code;
    codes[i] = static_cast<int32_t>(code);
  }
}

inline void subtract(const int32_t* codes, int64_t count, float scale, float* v) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) v[i] -= scale * static_cast<float>(codes[i]);
}

inline void pack(const int32_t* codes, int64_t count, int bits, uint8_t* out) {
  if (bits == 8) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(codes[i]);
  } else if (bits == 4) {
    for (int64_t i = 0; i + 1 < count; i += 2) out[i / 2] = static_cast<uint8_t>((codes[i] + 8) | (codes[i + 1] + 8) << 4);
    if (count % 2 != 0) out[count / 2] = static_cast<uint8_t>(codes[count - 1] + 8);
  } else {
    for (int64_t i = 0; i < count; i += 8) {
      int byte = 0;
      for (int64_t k = 0; k < 8 && i + k < count; ++k) byte |= (codes[i + k] > 0 ? 1 : 0) << k;
      out[i / 8] = static_cast<uint8_t>(byte);
    }
  }
}

inline void unpack(const uint8_t* in, int64_t count, int bits, int32_t* codes) {
  if (bits == 8) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(in[i]);
  } else if (bits == 4) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) codes[i] = (in[i / 2] >> (4 * (i % 2)) & 15) - 8;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) codes[i] = 2 * (in[i / 8] >> (i % 8) & 1) - 1;
  }
}

}  // namespace

void encode_blocks(const EncodeBlocks& p, int64_t begin, int64_t end) {
  const int limit = p.bits == 8 ? 127 : 7;
  int32_t codes[kStrip];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * p.block, size = p.count - first < p.block ? p.count - first : p.block;
    // Without error feedback there is no error to add, and nothing is written back.
    float* const next = p.next_error == nullptr ? nullptr : p.next_error + first;
    if (next != nullptr) add_error(p.gradient + first, p.error == nullptr ? nullptr : p.error + first, size, next);
    const float* const v = next == nullptr ? p.gradient + first : next;
    float scale = 0;
    if (p.bits == 1) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(__builtin_fabsf(v[i]));
      scale = static_cast<float>(sum / static_cast<double>(size));
    } else {
      scale = integer_scale(v, size, limit);
    }
    p.scales[b] = scale;
    for (int64_t strip = 0; strip < size; strip += kStrip) {
      const int64_t count = size - strip < kStrip ? size - strip : kStrip;
      if (p.bits == 1) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) codes[i] = v[strip + i] >= 0 ? 1 : -1;
      } else {
        integer_codes(v + strip, count, scale, limit, codes);
      }
      pack(codes, count, p.bits, p.codes + (first + strip) * p.bits / 8);
      if (next != nullptr) subtract(codes, count, scale, next + strip);
    }
  }
}

void decode_blocks(const DecodeBlocks& p, int64_t begin, int64_t end) {
  int32_t codes[kStrip];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * p.block, size = p.count - first < p.block ? p.count - first : p.block;
    const float scale = p.scales[b];
    for (int64_t strip = 0; strip < size; strip += kStrip) {
      const int64_t count = size - strip < kStrip ? size - strip : kStrip;
      unpack(p.codes + (first + strip) * p.bits / 8, count, p.bits, codes);
      float* const out = p.out + first + strip;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) out[i] += scale * static_cast<float>(codes[i]);
    }
  }
}

}  // namespace trireme::cpu::TRIREME_ISA
