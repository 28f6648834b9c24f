#include "trainer/plan/text.h"

#include <cmath>
#include <utility>

namespace trireme {
namespace {

using UnitName = std::pair<double, const char*>;

/// `value` in the first of `units` that is not larger than it, or in the last unit.
template <size_t n>
std::string in_units(double value, const UnitName (&units)[n]) {
  for (const auto& [size, name] : units)
    if (value >= size) return number_text(value / size) + name;
  return number_text(value / units[n - 1].first) + units[n - 1].second;
}

}  // namespace

std::string number_text(double value) { return print(value >= 999.5 && value < 1e9 ? "%.0f" : "%.3g", value); }

std::string count_text(double count) {
  if (!std::isfinite(count)) return "none";
  if (count >= 1e15) return number_text(count);
  return in_units(count, {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}, {1, ""}});
}

std::string bytes_text(double bytes) { return in_units(bytes, {{1e15, " PB"}, {1e12, " TB"}, {1e9, " GB"}, {1e6, " MB"}, {1e3, " kB"}, {1, " B"}}); }

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0 s";
  const auto [unit, name] = seconds >= 0.1 ? UnitName{1, " s"} : seconds >= 1e-4 ? UnitName{1e-3, " ms"} : UnitName{1e-6, " us"};
  const double value = seconds / unit;
  return print("%.*f", value < 1 ? 4 : value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0, value) + name;
}

std::string time_text(double seconds) {
  for (const auto& [unit, name] : {UnitName{86400, " days"}, {3600, " h"}, {60, " min"}})
    if (seconds >= 2 * unit) return number_text(seconds / unit) + name;
  return in_units(seconds, {{1, " s"}, {1e-3, " ms"}, {1e-6, " us"}});
}

std::string percent_text(double share) { return print("%.1f %%", 100 * share); }

std::string xml_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&')
      result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
    else
      result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result;
}

}  // namespace trireme
