#pragma once
// Axes of plots: range, ticks and labels.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::report {

/// What the numbers of an axis are, which decides where its ticks are and how they are written.
enum class Quantity : uint8_t {
  kNumber,    ///< 0.25, 3e-4
  kCount,     ///< steps, tokens: 20k, 1.5M
  kDuration,  ///< in seconds: 90 s, 25 min, 3.5 h
  kClock,     ///< seconds since 1970 as UTC: 14:30, Nov 23
  kBytes,     ///< 1.5 GiB
  kPercent,   ///< a share: 0.25 is 25 %
};

struct Axis {
  std::string label;
  Quantity quantity = Quantity::kNumber;
  double low = 0, high = 1;  ///< low < high; both positive if `log`; high - low and high / low are finite
  bool log = false;

  /// Place of `value` on the axis: 0 at `low`, 1 at `high`; on a logarithmic one infinitely far below for what is not positive.
  double place(double value) const;
};

struct Tick {
  double value = 0;
  std::string label;
  bool minor = false;  ///< may be left out where there is little space
};

/// Ticks within the axis, ascending, about `count` of them, with labels that no two ticks share.
std::vector<Tick> ticks_of(const Axis& axis, int count);

/// 1234567 -> "1,234,567".
std::string grouped(int64_t value);

/// The value in words, with up to four significant digits.
std::string value_text(double value, Quantity quantity);

/// An axis from `low` to `high` with a margin of 4 % on both sides, widened if both are equal. `log` is kept only if `low` is positive. An axis of
/// steps, tokens or time has no margin and, unless it is logarithmic, begins at 0 if that widens it by less than a quarter.
Axis fitted_axis(std::string label, Quantity quantity, double low, double high, bool log = false);

}  // namespace trireme::report
