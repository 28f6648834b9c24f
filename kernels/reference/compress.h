#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/compress.h"

namespace trireme::reference {

/// A message of a block encoding: fp32 scales, then codes of `bits` bits. 8 % bits == 0.
struct BlockMessage {
  float* scales;
  uint8_t* codes;
};
inline BlockMessage block_message(uint8_t* message, int64_t blocks) {
  return {reinterpret_cast<float*>(message), message + blocks * static_cast<int64_t>(sizeof(float))};
}

/// |x| as an integer that orders finite numbers, infinity and NaN in this order, so that a maximum does not lose a NaN.
template <class T>
auto magnitude(T x) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  return std::bit_cast<Bits>(x) & (~Bits{0} >> 1);
}

/// The scale of a block whose codes are integers from -limit to limit, at most 127; 0 if dividing by it would overflow. It is rounded up to 17 binary
/// digits: its product with a code is then exact, and so is the difference between an element and that product. What is not finite stays so: rounding up
/// a NaN of which all bits are set, as GPUs make it, would give zero.
template <class T>
float integer_scale(const T* v, int64_t count, int limit) {
  decltype(magnitude(T{})) largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(v[i]));
  const auto scale = static_cast<float>(std::bit_cast<T>(largest) / static_cast<T>(limit));
  if (scale < std::numeric_limits<float>::min()) return 0;
  if (!std::isfinite(scale)) return scale;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 0x7FU) & ~0x7FU);
}

/// The mean of |v|, as a sum in double in index order. NaN stays NaN.
template <class T>
float mean_magnitude(const T* v, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::abs(static_cast<double>(v[i]));
  return static_cast<float>(sum / static_cast<double>(count));
}

/// Code of x: the nearest multiple of the scale, ties to even; 0 if the scale is 0 or not finite.
template <class T>
int integer_code(T x, float scale, int limit) {
  if (!(scale > 0) || !std::isfinite(scale)) return 0;
  const T quotient = std::nearbyint(x / static_cast<T>(scale));
  return static_cast<int>(std::clamp(quotient, static_cast<T>(-limit), static_cast<T>(limit)));
}

/// Calls body(position in the message, element) for the elements that kRandomK draws.
template <class Body>
void for_drawn(const EncodingOptions& options, const EncodingDraw& draw, int64_t count, const Body& body) {
  const int64_t kept = kept_elements(options, count);
  for (int64_t j = 0; j < kept; ++j) {
    const int64_t begin = j * count / kept, length = (j + 1) * count / kept - begin;
    const double u = random_uniform(draw.key, static_cast<uint64_t>(j), draw.draw);
    body(j, begin + std::min(length - 1, static_cast<int64_t>(u * static_cast<double>(length))), length);
  }
}

/// The indices of the k elements with the largest magnitude, ascending.
template <class T>
std::vector<int32_t> largest(const T* v, int64_t count, int64_t k) {
  std::vector<decltype(magnitude(T{}))> magnitudes(static_cast<size_t>(count));
  std::transform(v, v + count, magnitudes.begin(), [](T x) { return magnitude(x); });
  auto sorted = magnitudes;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const auto threshold = sorted[static_cast<size_t>(k - 1)];
  int64_t ties = k - std::count_if(magnitudes.begin(), magnitudes.end(), [=](auto m) { return m > threshold; });
  std::vector<int32_t> indices;
  indices.reserve(static_cast<size_t>(k));
  for (int64_t i = 0; i < count; ++i) {
    const auto m = magnitudes[static_cast<size_t>(i)];
    if (m > threshold || (m == threshold && ties-- > 0)) indices.push_back(static_cast<int32_t>(i));
  }
  return indices;
}

/// Decodes by calling add(element, value) for every element that the message has.
template <class Add>
void for_decoded(const EncodingOptions& options, const EncodingDraw& draw, const uint8_t* message, int64_t count, const Add& add) {
  const int64_t kept = kept_elements(options, count);
  switch (options.encoding) {
    case Encoding::kTopK: {
      const auto* const indices = reinterpret_cast<const int32_t*>(message);
      const auto* const values = reinterpret_cast<const float*>(indices + kept);
      for (int64_t j = 0; j < kept; ++j) {
        const bool inside = indices[j] >= 0 && indices[j] < count;
        add(inside ? indices[j] : 0, inside ? values[j] : std::numeric_limits<float>::quiet_NaN());
      }
      return;
    }
    case Encoding::kRandomK: {
      const auto* const values = reinterpret_cast<const float*>(message);
      for_drawn(options, draw, count, [&](int64_t j, int64_t element, int64_t) { add(element, values[j]); });
      return;
    }
    default: break;
  }
  const int64_t blocks = (count + options.block - 1) / options.block;
  const auto [scales, codes] = block_message(const_cast<uint8_t*>(message), blocks);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = scales[i / options.block];
    float factor = 0;
    if (options.encoding == Encoding::kInt8) factor = static_cast<float>(static_cast<int8_t>(codes[i]));
    if (options.encoding == Encoding::kInt4) factor = static_cast<float>((codes[i / 2] >> (4 * (i % 2)) & 15) - 8);
    if (options.encoding == Encoding::kSign) factor = (codes[i / 8] >> (i % 8) & 1) != 0 ? 1.0F : -1.0F;
    add(i, scale * factor);
  }
}

/// next_error is zero: the message lacks nothing.
template <class T>
void encode_exactly(const T* gradient, const T* error, int64_t count, uint8_t* message, T* next_error) {
  for (int64_t i = 0; i < count; ++i) {
    const T v = error == nullptr ? gradient[i] : gradient[i] + error[i];
    std::memcpy(message + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
    if (next_error != nullptr) next_error[i] = 0;
  }
}

template <class T>
void encode(const EncodingOptions& options, const EncodingDraw& draw, const T* gradient, const T* error, int64_t count, uint8_t* message,
            T* next_error) {
  if (options.encoding == Encoding::kNone) return encode_exactly(gradient, error, count, message, next_error);
  std::vector<T> v(gradient, gradient + count);
  if (error != nullptr)
    for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] += error[i];
  std::memset(message, 0, static_cast<size_t>(encoded_bytes(options, count)));
  const int64_t blocks = (count + options.block - 1) / options.block;
  const BlockMessage out = block_message(message, blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * options.block, size = std::min(options.block, count - begin);
    const T* const x = v.data() + begin;
    switch (options.encoding) {
      case Encoding::kInt8:
        out.scales[b] = integer_scale(x, size, 127);
        for (int64_t i = 0; i < size; ++i) out.codes[begin + i] = static_cast<uint8_t>(integer_code(x[i], out.scales[b], 127));
        break;
      case Encoding::kInt4:
        out.scales[b] = integer_scale(x, size, 7);
        for (int64_t i = 0; i < size; ++i)
          out.codes[(begin + i) / 2] |= static_cast<uint8_t>((integer_code(x[i], out.scales[b], 7) + 8) << (4 * ((begin + i) % 2)));
        break;
      case Encoding::kSign:
        out.scales[b] = mean_magnitude(x, size);
        for (int64_t i = 0; i < size; ++i) out.codes[(begin + i) / 8] |= static_cast<uint8_t>((x[i] >= 0 ? 1 : 0) << ((begin + i) % 8));
        break;
      default: break;
    }
  }
  if (options.encoding == Encoding::kTopK) {
    const int64_t kept = kept_elements(options, count);
    auto* const indices = reinterpret_cast<int32_t*>(message);
    std::ranges::copy(largest(v.data(), count, kept), indices);
    auto* const values = reinterpret_cast<float*>(indices + kept);
    for (int64_t j = 0; j < kept; ++j) values[j] = static_cast<float>(v[static_cast<size_t>(indices[j])]);
  } else if (options.encoding == Encoding::kRandomK) {
    auto* const values = reinterpret_cast<float*>(message);
    for_drawn(options, draw, count, [&](int64_t j, int64_t element, int64_t length) {
      values[j] = static_cast<float>(v[static_cast<size_t>(element)] * (options.unbiased ? static_cast<T>(length) : T{1}));
    });
    if (!std::ranges::all_of(v, [](T x) { return std::isfinite(x); })) values[0] = std::numeric_limits<float>::quiet_NaN();
  }
  if (next_error == nullptr) return;
  for_decoded(options, draw, message, count, [&](int64_t i, float value) { v[static_cast<size_t>(i)] -= static_cast<T>(value); });
  std::ranges::copy(v, next_error);
}

template <class T>
void decode(const EncodingOptions& options, const EncodingDraw& draw, const uint8_t* message, int64_t count, T* out) {
  if (options.encoding != Encoding::kNone)
    return for_decoded(options, draw, message, count, [&](int64_t i, float value) { out[i] += static_cast<T>(value); });
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, message + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] += value;
  }
}

}  // namespace trireme::reference
