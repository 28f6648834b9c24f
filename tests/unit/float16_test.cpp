#include "kernels/core/float16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float float_of(uint32_t word) { return std::bit_cast<float>(word); }

/// The definition: sign, 5 bits of exponent with bias 15, 10 of mantissa.
double value_by_definition(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * kInfinity;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// The definition in double arithmetic: divides `value` by the spacing of fp16 numbers, rounds in the FPU (to nearest, ties to even), and scales
/// back.
float rounded_by_definition(float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -14) - 10;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -exponent)), exponent);
  return std::abs(rounded) > 65504 ? std::copysign(kInfinity, value) : static_cast<float>(rounded);
}

bool rounds_right(uint32_t word) {
  const float value = float_of(word), rounded = float16(value);
  if (std::isnan(value)) return std::isnan(rounded) && std::signbit(rounded) == std::signbit(value);
  return std::bit_cast<uint32_t>(rounded) == std::bit_cast<uint32_t>(rounded_by_definition(value));
}

}  // namespace

TEST_CASE("float16: every bit pattern has the value of its definition and is preserved by a conversion to float and back") {
  std::vector<uint32_t> wrong;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float16 half;
    half.bits = static_cast<uint16_t>(bits);
    const float value = half;
    const bool nan = std::isnan(value);
    const bool right = nan ? std::isnan(value_by_definition(bits)) : value == value_by_definition(bits) && std::signbit(value) == (bits >> 15 != 0);
    const bool back = nan ? (float16(value).bits & 0x7FFF) > 0x7C00 : float16(value).bits == bits;
    if (!(right && back) && wrong.size() < 10) wrong.push_back(bits);
  }
  CHECK(wrong == std::vector<uint32_t>{});
}

TEST_CASE("float16: rounds to nearest, ties to even, over the whole range of fp32") {
  std::vector<uint32_t> wrong;
  const auto check = [&](uint32_t word) {
    if (!rounds_right(word) && wrong.size() < 10) wrong.push_back(word);
  };
  // Around every upper half of a float, and around each tie if the last bit kept is the 14th or (for subnormals) a higher one.
  for (uint32_t high = 0; high < 65536; ++high)
    for (const uint32_t low :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U, 0x3001U, 0x7FFFU, 0x8000U, 0x8001U, 0xEFFFU, 0xF000U, 0xFFFFU})
      check(high << 16 | low);
  for (uint64_t i = 0; i < 1000000; ++i) check(static_cast<uint32_t>(random_bits(11, i)));
  CHECK(wrong == std::vector<uint32_t>{});
}

TEST_CASE("float16: overflow, subnormal numbers and zeros") {
  CHECK(float{float16(65504.0F)} == 65504.0F);
  CHECK(float{float16(65519.996F)} == 65504.0F);
  CHECK(float{float16(65520.0F)} == kInfinity);
  CHECK(float{float16(-1e30F)} == -kInfinity);
  CHECK(float{float16(0x1p-24F)} == 0x1p-24F);
  CHECK(float16(0x1p-25F).bits == 0);  // half of the smallest number: rounds to even, which is zero
  CHECK(float16(-0x1.8p-24F).bits == 0x8002);
  CHECK(float16(-0.0F).bits == 0x8000);
}

TEST_CASE("float16: dtype traits") {
  static_assert(float16(1.5F).bits == 0x3E00 && static_cast<float>(float16(-3)) == -3.0F);
  static_assert(dtype_of<float16>() == DType::kF16 && size_of(DType::kF16) == 2 && accumulator_of(DType::kF16) == DType::kF32);
  CHECK(std::string(name_of(DType::kF16)) == "F16");
  DType seen = DType::kU8;
  dispatch_float(DType::kF16, [&]<class T>(T) { seen = dtype_of<T>(); });
  CHECK(seen == DType::kF16);
}
