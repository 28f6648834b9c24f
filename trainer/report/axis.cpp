#include "trainer/report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>

#include "trainer/files/table.h"
#include "trainer/plan/text.h"

namespace trireme::report {
namespace {

/// 1, 2 or 5 times a power of ten, the smallest that is at least `value`.
double nice_step(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

/// `steps`: ascending; the first that is at least `value`, or a nice multiple of the last.
template <size_t n>
double listed_step(double value, const std::array<double, n>& steps) {
  const auto found = std::ranges::lower_bound(steps, value * (1 - 1e-9));
  return found != steps.end() ? *found : nice_step(value / steps.back()) * steps.back();
}

double tick_step(const Axis& axis, int count) {
  const double wanted = axis.high / count - axis.low / count;  // the difference itself may be beyond what a double can be
  constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  static constexpr std::array kTimes{1.0,          2.0,          5.0,          10.0,  15.0,      30.0,      kMinute,   2 * kMinute, 5 * kMinute,
                                     10 * kMinute, 15 * kMinute, 30 * kMinute, kHour, 2 * kHour, 3 * kHour, 6 * kHour, 12 * kHour,  kDay};
  if (axis.quantity == Quantity::kClock || (axis.quantity == Quantity::kDuration && wanted > 1)) return listed_step(wanted, kTimes);
  if (axis.quantity == Quantity::kBytes) {
    const double unit = std::pow(1024, std::floor(std::log2(std::max(wanted, 1.0)) / 10));
    return std::exp2(std::ceil(std::log2(wanted / unit))) * unit;
  }
  const double step = nice_step(wanted);
  return axis.quantity == Quantity::kCount ? std::max(1.0, step) : step;
}

/// Without a trailing ".0": "1.5", "2".
std::string shortest(double value, int digits) { return print("%.*g", digits, value); }

std::string count_label(double value, double step) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits{{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, name] : kUnits) {
    // The unit of the largest labels, as long as the step can be written in it with two decimals.
    if (std::abs(value) < unit || step < unit / 100) continue;
    return shortest(value / unit, 6) + name;
  }
  return shortest(value, 15);
}

std::string clock_label(double value, double step) {
  const auto seconds = static_cast<std::time_t>(value);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const bool midnight = parts.tm_hour == 0 && parts.tm_min == 0 && parts.tm_sec == 0;
  std::strftime(text.data(), text.size(), midnight ? "%b %e" : step < 60 ? "%H:%M:%S" : "%H:%M", &parts);
  return text.data();
}

std::string label_of(double value, double step, const Axis& axis) {
  const double rounded = std::abs(value) < step * 1e-6 ? 0 : value;  // not 1e-17
  switch (axis.quantity) {
    case Quantity::kCount: return count_label(rounded, step);
    case Quantity::kClock: return clock_label(rounded, step);
    case Quantity::kBytes: return rounded == 0 ? "0" : binary_bytes_text(rounded);
    case Quantity::kPercent: return shortest(100 * rounded, 4) + " %";
    case Quantity::kDuration: {
      if (rounded == 0) return "0";
      const auto [unit, name] = axis.high >= 3 * 86400.0  ? std::pair(86400.0, " d")
                                : axis.high >= 2 * 3600.0 ? std::pair(3600.0, " h")
                                : axis.high >= 120        ? std::pair(60.0, " min")
                                : axis.high >= 1          ? std::pair(1.0, " s")
                                                          : std::pair(1e-3, " ms");
      return shortest(rounded / unit, 4) + name;
    }
    case Quantity::kNumber: break;
  }
  const int digits = std::max(2, 1 + static_cast<int>(std::floor(std::log10(std::max(std::abs(rounded), step)) - std::log10(step) + 1e-6)));
  return std::abs(rounded) >= 1e5 && std::abs(rounded) < 1e12 ? count_label(rounded, step) : shortest(rounded, digits);
}

std::vector<Tick> linear_ticks(const Axis& axis, int count) {
  const double step = tick_step(axis, count);
  std::vector<Tick> ticks;
  // Values that no run has would give ticks without end: an axis beyond what a double can be, or one whose ticks differ in no digit of it.
  constexpr double kMostSteps = 1e15, kMostTicks = 1000;
  if (!std::isfinite(step) || step <= 0 || !(std::abs(axis.low / step) < kMostSteps) || !(std::abs(axis.high / step) < kMostSteps) ||
      (axis.high - axis.low) / step > kMostTicks)
    return ticks;
  const double slack = 1e-9 * (axis.high / step - axis.low / step);
  const auto first = static_cast<int64_t>(std::ceil(axis.low / step - slack)), last = static_cast<int64_t>(std::floor(axis.high / step + slack));
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks.push_back({value, label_of(value, step, axis), i % 2 != 0});
  }
  return ticks;
}

/// Powers of ten, with 2 and 5 times each, or all multiples, as there is space.
std::vector<Tick> log_ticks(const Axis& axis, int count) {
  const double decades = std::log10(axis.high) - std::log10(axis.low);
  if (!(axis.low > 0) || !std::isfinite(decades)) return {};
  if (decades < 0.35) return linear_ticks(axis, count);
  std::vector<double> factors{1};
  if (decades * 3 <= count + 1) factors = {1, 2, 5};
  if (decades * 9 <= 2.0 * count) factors = {1, 2, 3, 4, 5, 6, 8};
  const int every = std::max(1, static_cast<int>(std::lround(decades / count)));
  std::vector<Tick> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(axis.low))); power <= static_cast<int>(std::ceil(std::log10(axis.high))); ++power) {
    if (power % every != 0) continue;
    for (const double factor : factors) {
      const double value = factor * std::pow(10, power);
      if (value < axis.low * (1 - 1e-9) || value > axis.high * (1 + 1e-9)) continue;
      const std::string label = axis.quantity == Quantity::kNumber ? shortest(value, 3) : label_of(value, value, axis);
      ticks.push_back({value, label, factor != 1});
    }
  }
  return ticks;
}

}  // namespace

double Axis::place(double value) const {
  if (log) return value > 0 ? std::log(value / low) / std::log(high / low) : -std::numeric_limits<double>::infinity();
  return (value - low) / (high - low);
}

std::vector<Tick> ticks_of(const Axis& axis, int count) { return axis.log ? log_ticks(axis, count) : linear_ticks(axis, count); }

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3 && at - 3 > (value < 0 ? 1U : 0U);) digits.insert(at -= 3, ",");
  return digits;
}

std::string value_text(double value, Quantity quantity) {
  if (!std::isfinite(value)) return "–";
  switch (quantity) {
    case Quantity::kNumber: return shortest(value, 4);
    case Quantity::kCount: return std::abs(value) < 1e6 ? grouped(std::llround(value)) : count_text(value);
    case Quantity::kDuration: return value == 0 ? "0 s" : time_text(value);
    case Quantity::kClock: return clock_label(value, 1);
    case Quantity::kBytes: return binary_bytes_text(value);
    case Quantity::kPercent: return shortest(100 * value, 3) + " %";
  }
  return "";
}

Axis fitted_axis(std::string label, Quantity quantity, double low, double high, bool log) {
  if (!std::isfinite(low) || !std::isfinite(high)) low = 0, high = 1;
  Axis axis{std::move(label), quantity, low, high, log && low > 0};
  if (quantity == Quantity::kClock || quantity == Quantity::kCount || quantity == Quantity::kDuration) {
    if (quantity != Quantity::kClock && !axis.log && low > 0 && low < (high - low) / 4) axis.low = 0;
    if (axis.low >= axis.high) axis.low -= 1, axis.high += 1;
    axis.log = axis.log && axis.low > 0;
    return axis;
  }
  if (axis.log) {
    const double margin = std::pow(std::max(high / low, 1.05), 0.04);
    axis.low /= margin;
    axis.high *= margin;
    return axis;
  }
  const double size = high > low ? high - low : std::max(std::abs(high), 1e-12) * 0.1;
  axis.low -= size * 0.04;
  axis.high += size * 0.04;
  return axis;
}

}  // namespace trireme::report
