#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

namespace trireme {

/// IEEE half precision: 5 exponent bits, 10 mantissa bits; largest 65504, smallest normal 2^-14. Storage only, like bfloat16: arithmetic is in float,
/// and only the explicit constructors round (to nearest, ties to even); 65520 and more become infinity. NaN stays NaN.
struct float16 {
  uint16_t bits;

  float16() = default;
  constexpr explicit float16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  /// Converts through fp32, so it rounds twice: half an ulp of fp32 more error.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr explicit float16(Number value) : float16(static_cast<float>(value)) {}
  constexpr operator float() const { return widen(bits); }

 private:
  // Branch-free, so that loops vectorise: all three cases are computed. A subnormal half is never a subnormal float, which processors handle slowly.
  static constexpr float widen(uint16_t half) {
    constexpr uint32_t kRebias = (127 - 15) << 23;
    constexpr uint32_t kSmallestNormal = (127 - 14) << 23;  // 2^-14
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
    const uint32_t normal = magnitude + kRebias;
    // A subnormal half is m * 2^-24: 2^-14 (1 + m * 2^-10) minus 2^-14.
    const float subnormal = std::bit_cast<float>(magnitude + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal);
    const uint32_t finite = magnitude < (1U << 23) ? std::bit_cast<uint32_t>(subnormal) : normal;
    const uint32_t word = magnitude >= (31U << 23) ? normal + kRebias : finite;
    return std::bit_cast<float>(word | static_cast<uint32_t>(half & 0x8000) << 16);
  }
  static constexpr uint16_t round(uint32_t word) {
    const uint32_t magnitude = word & 0x7FFFFFFF;
    constexpr uint32_t kTooLarge = (127 + 16) << 23;        // 65536; from 65520 on, the rounding below carries into infinity
    constexpr uint32_t kSmallestNormal = (127 - 14) << 23;  // 2^-14
    constexpr uint32_t kHalfUlp = (127 - 1) << 23;          // 0.5: added to it, the last bit of the sum is 2^-24
    const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    const float shifted = std::bit_cast<float>(magnitude < kSmallestNormal ? magnitude : 0U) + std::bit_cast<float>(kHalfUlp);
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - kHalfUlp;
    const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
    const uint32_t special = magnitude > 0x7F800000 ? 0x7E00U : 0x7C00U;
    return static_cast<uint16_t>((magnitude >= kTooLarge ? special : finite) | (word >> 16 & 0x8000));
  }
};
static_assert(sizeof(float16) == 2 && std::is_trivially_copyable_v<float16>);

}  // namespace trireme
