// Fixed-point numbers modulo 2^64: rounding, limits, and sums that are exact.
#include "parallel/crypto/fixed_point.h"

#include <cmath>
#include <limits>
#include <string>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"

namespace trireme::crypto {

using namespace trireme::test;

TEST_CASE("fixed point: numbers are rounded to the nearest integer, and ties to the even one") {
  const FixedPoint whole(0, 4);
  for (const auto& [value, integer] : {std::pair<double, int64_t>(0, 0),
                                       {-0.0, 0},
                                       {0.5, 0},
                                       {1.5, 2},
                                       {2.5, 2},
                                       {0.50001, 1},
                                       {-0.5, 0},
                                       {-1.5, -2},
                                       {-2.5, -2},
                                       {1.75, 2},
                                       {-1.75, -2},
                                       {1e6 + 0.25, 1000000}}) {
    CAPTURE(value);
    CHECK(whole.encode(value) == static_cast<uint64_t>(integer));
  }
  const FixedPoint quarter(2, 4);
  CHECK(quarter.encode(0.375) == 2);  // 1.5 quarters
  CHECK(quarter.encode(-0.25) == ~uint64_t{0});
  CHECK(FixedPoint(40, 4).encode(0x1p-40) == 1);
  CHECK(FixedPoint(40, 4).encode(std::numeric_limits<double>::denorm_min()) == 0);
}

TEST_CASE("fixed point: a decoded number is the encoded one up to half a unit, and exactly where it fits") {
  const FixedPoint format(24, 16);
  for (const double value : {0.0, 1.0, -1.0, 3.25, -1234567.0 - 0x1p-24, 0x1p30}) CHECK(format.decode(format.encode(value)) == value);
  for (const double value : {0.1, -0.7, 3.14159265358979, -1e5 / 3}) CHECK(std::abs(format.decode(format.encode(value)) - value) <= 0x1p-25);
}

TEST_CASE("fixed point: as many numbers as there are members cannot overflow, and larger ones are refused") {
  for (const size_t members : {1, 2, 3, 16, 64})
    for (const int bits : {0, 24, 62}) {
      CAPTURE(members, bits);
      const FixedPoint format(bits, members);
      const double limit = format.limit();
      for (const double sign : {1.0, -1.0}) {
        uint64_t sum = 0;
        for (size_t i = 0; i < members; ++i) sum += format.encode(sign * limit);
        CHECK(format.decode(sum) == Approx(sign * limit * static_cast<double>(members)).epsilon(1e-12));
        CHECK_THROWS_AS(format.encode(sign * std::nextafter(limit, 1e300) * (1 + 0x1p-40)), DataError);
      }
      // Where 2^63 / n is a double, it is the first one that would overflow.
      if (members != 3) CHECK_THROWS_AS(format.encode(std::ldexp(0x1p63 / static_cast<double>(members), -bits)), DataError);
    }
}

TEST_CASE("fixed point: values that are not finite or too large are refused with the limit") {
  const FixedPoint format(32, 2);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300, 0x1p31, 0x1p30})
    check_throws<DataError>([&] { static_cast<void>(format.encode(value)); }, {"finite", "1.07374e+09"});
  check_throws<ConfigError>([] { static_cast<void>(FixedPoint(63, 2)); }, {"63", "0 to 62"});
  check_throws<ConfigError>([] { static_cast<void>(FixedPoint(-1, 2)); }, {"-1", "0 to 62"});
  check_throws<ConfigError>([] { static_cast<void>(FixedPoint(24, 0)); }, {"at least one"});
}

}  // namespace trireme::crypto
