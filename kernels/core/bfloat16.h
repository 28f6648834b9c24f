#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

namespace trireme {

/// The upper half of an IEEE single: 8 exponent bits, 7 mantissa bits. Storage only: it converts to float implicitly, arithmetic is in float, and
/// only the explicit constructors round (to nearest, ties to even). NaN stays NaN.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  constexpr explicit bfloat16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  /// Converts through fp32, so it rounds twice: half an ulp of fp32 more error.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr explicit bfloat16(Number value) : bfloat16(static_cast<float>(value)) {}
  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

 private:
  static constexpr uint16_t round(uint32_t word) {
    const bool nan = (word & 0x7FFFFFFF) > 0x7F800000;
    if (nan) return static_cast<uint16_t>(word >> 16 | 0x40);
    return static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
};
static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);

}  // namespace trireme
