#include "parallel/crypto/fixed_point.h"

#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace trireme::crypto {

FixedPoint::FixedPoint(int fraction_bits, size_t members) : fraction_bits_(fraction_bits) {
  if (fraction_bits < 0 || fraction_bits > 62) throw ConfigError(concat("invalid number of fraction bits ", fraction_bits, "; allowed 0 to 62"));
  if (members == 0) throw ConfigError("a sum of fixed-point numbers has at least one member");
  largest_ = static_cast<int64_t>(static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / members);
}

uint64_t FixedPoint::encode(double value) const {
  const double scaled = std::nearbyint(std::ldexp(value, fraction_bits_));
  // The largest integer may be rounded up as a double, so that the comparison is one of integers. NaN fails the first one.
  const bool converts = std::abs(scaled) < 0x1p63;
  const int64_t integer = converts ? static_cast<int64_t>(scaled) : 0;
  if (!converts || integer > largest_ || integer < -largest_)
    throw DataError(concat("the value ", value, " cannot be summed in fixed point; allowed are finite values of magnitude up to ", limit()));
  return static_cast<uint64_t>(integer);
}

double FixedPoint::decode(uint64_t sum) const { return std::ldexp(static_cast<double>(static_cast<int64_t>(sum)), -fraction_bits_); }

double FixedPoint::limit() const {
  double largest = static_cast<double>(largest_);
  // The conversion rounds to nearest; 2^63 itself does not convert back.
  if (largest >= 0x1p63 || static_cast<int64_t>(largest) > largest_) largest = std::nextafter(largest, 0);
  return std::ldexp(largest, -fraction_bits_);
}

}  // namespace trireme::crypto
