#pragma once
// Number formatting for the reports of `trireme plan`.
#include <array>
#include <cstdio>
#include <string>

#include "trainer/files/plain_zero.h"

namespace trireme {

/// snprintf into a string of at most 255 characters.
template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return plain_zero(text.data());
}

/// Three significant digits; whole numbers from 1000 on: "0.287", "3123".
std::string number_text(double value);
/// 8.03e9 -> "8.03 B"; "none" if not finite.
std::string count_text(double count);
/// Decimal units: 1.5e9 -> "1.5 GB".
std::string bytes_text(double bytes);
/// Time of a step or its parts: four significant digits, in s, ms or us, so that figures compare: "6.800 s", "0.4139 s", "13.20 ms"; zero is "0 s".
std::string seconds_text(double seconds);
/// Any duration, in the largest unit, from days to microseconds, of which it has at least two: "2.5 days", "90 min", "13.2 ms".
std::string time_text(double seconds);
std::string percent_text(double share);  ///< 0.123 -> "12.3 %"
/// Text for an element of SVG or HTML: <, > and & as entities, control characters as spaces.
std::string xml_text(const std::string& text);

}  // namespace trireme
