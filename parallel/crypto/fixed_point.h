#pragma once
// Real numbers as integers modulo 2^64, whose sums are exact and equal in every order.
#include <cstddef>
#include <cstdint>

namespace trireme::crypto {

/// Numbers with `fraction_bits` binary digits after the point, of which `members` are added up.
class FixedPoint {
 public:
  /// Errors: ConfigError unless fraction_bits is 0 to 62 and members at least 1.
  FixedPoint(int fraction_bits, size_t members);

  /// The nearest integer to value * 2^fraction_bits, of two equally near ones the even one, modulo 2^64.
  /// Errors: DataError, which states the limit, if `value` is not finite or its magnitude is above limit().
  uint64_t encode(double value) const;
  /// The number that a sum of at most `members` encoded numbers stands for, rounded to double: exact up to 53 significant bits.
  double decode(uint64_t sum) const;
  /// The largest magnitude of which `members` numbers cannot overflow, rounded down to double.
  double limit() const;

 private:
  int fraction_bits_;
  int64_t largest_;  ///< floor((2^63 - 1) / members)
};

}  // namespace trireme::crypto
