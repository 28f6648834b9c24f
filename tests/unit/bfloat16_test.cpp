#include "kernels/core/bfloat16.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bfloat16 from_bits(uint32_t bits) {
  bfloat16 value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}
float float_of(uint32_t word) { return std::bit_cast<float>(word); }

/// The definition in double arithmetic: divides `value` by the spacing of bf16 numbers, rounds in the FPU (to nearest, ties to even), and scales
/// back.
float rounded_by_definition(float value) {
  if (!std::isfinite(value) || value == 0) return value;
  constexpr int kMantissa = 7, kLeastExponent = -126;
  const int exponent = std::max(std::ilogb(value), kLeastExponent) - kMantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -exponent)), exponent);
  const double largest = std::ldexp(255.0, 120);
  return std::abs(rounded) > largest ? std::copysign(kInfinity, value) : static_cast<float>(rounded);
}

bool rounds_right(uint32_t word) {
  const float value = float_of(word), rounded = bfloat16(value);
  if (std::isnan(value)) return std::isnan(rounded);
  return std::bit_cast<uint32_t>(rounded) == std::bit_cast<uint32_t>(rounded_by_definition(value));
}

}  // namespace

TEST_CASE("bfloat16: every bit pattern is preserved by a conversion to float and back") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = from_bits(bits);
    const bool exact = std::bit_cast<uint32_t>(value) == bits << 16;
    const bfloat16 back(value);
    // A signalling NaN becomes quiet; its other bits are preserved.
    const bool kept = std::isnan(value) ? back.bits == (bits | 0x40) : back.bits == bits;
    wrong += exact && kept ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16: rounds to nearest, ties to even") {
  CHECK(bfloat16(1.0F).bits == 0x3F80);
  CHECK(bfloat16(-2.5F).bits == 0xC020);
  CHECK(bfloat16(float_of(0x3F808000)).bits == 0x3F80);  // halfway above an even neighbour: down
  CHECK(bfloat16(float_of(0x3F818000)).bits == 0x3F82);  // halfway above an odd neighbour: up
  CHECK(bfloat16(float_of(0x3F808001)).bits == 0x3F81);
  CHECK(bfloat16(float_of(0x3F817FFF)).bits == 0x3F81);
  CHECK(bfloat16(float_of(0xBF818000)).bits == 0xBF82);  // the sign has no effect
  CHECK(bfloat16(float_of(0x3FFFFFFF)).bits == 0x4000);  // into the next power of two
}

TEST_CASE("bfloat16: infinities, overflow and NaN") {
  CHECK(float{bfloat16(kInfinity)} == kInfinity);
  CHECK(float{bfloat16(-kInfinity)} == -kInfinity);
  CHECK(float{bfloat16(std::numeric_limits<float>::max())} == kInfinity);
  CHECK(bfloat16(float_of(0x7F7F7FFF)).bits == 0x7F7F);  // the last value that stays finite
  CHECK(bfloat16(float_of(0x7F7F8000)).bits == 0x7F80);
  CHECK(std::isnan(float{bfloat16(std::numeric_limits<float>::quiet_NaN())}));
  // A payload only in the lower half must not give an infinity, and all ones must not give zero.
  for (const uint32_t word : {0x7F800001U, 0xFF800001U, 0x7F80FFFFU, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FBFFFFFU}) {
    INFO("NaN " << word);
    CHECK(std::isnan(float{bfloat16(float_of(word))}));
    CHECK(std::signbit(float{bfloat16(float_of(word))}) == (word >> 31 != 0));
  }
}

TEST_CASE("bfloat16: denormals and signed zeros") {
  CHECK(bfloat16(0.0F).bits == 0);
  CHECK(bfloat16(-0.0F).bits == 0x8000);
  CHECK(bfloat16(float_of(0x00008000)).bits == 0);  // half of the smallest number: rounds to even, which is zero
  CHECK(bfloat16(float_of(0x00008001)).bits == 1);
  CHECK(bfloat16(float_of(0x00018000)).bits == 2);
  CHECK(bfloat16(float_of(0x007F8000)).bits == 0x0080);  // up into the normal numbers
  CHECK(float{from_bits(1)} == std::ldexp(1.0F, -133));
}

TEST_CASE("bfloat16: rounding matches its definition over the whole range") {
  REQUIRE(std::fegetround() == FE_TONEAREST);
  std::vector<uint32_t> wrong;
  const auto check = [&](uint32_t word) {
    if (!rounds_right(word) && wrong.size() < 10) wrong.push_back(word);
  };
  // Around every pattern: the value itself, just above it, the tie and its neighbours, just below the next value.
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) check(bits << 16 | low);
  }
  for (uint64_t i = 0; i < 1000000; ++i) check(static_cast<uint32_t>(random_bits(11, i)));
  CHECK(wrong == std::vector<uint32_t>{});
}

TEST_CASE("bfloat16: constexpr use, conversion from other types, and dtype traits") {
  static_assert(bfloat16(1.5F).bits == 0x3FC0 && static_cast<float>(bfloat16(-3)) == -3.0F);
  static_assert(dtype_of<bfloat16>() == DType::kBF16 && size_of(DType::kBF16) == 2 && accumulator_of(DType::kBF16) == DType::kF32);
  static_assert(std::is_same_v<Accumulator<bfloat16>, float> && std::is_same_v<Accumulator<double>, double>);
  CHECK(float{bfloat16(0.1)} == 0.10009765625F);
  CHECK(std::string(name_of(DType::kBF16)) == "BF16");
  DType seen = DType::kU8;
  dispatch_float(DType::kBF16, [&]<class T>(T) { seen = dtype_of<T>(); });
  CHECK(seen == DType::kBF16);
}
