#pragma once
// Figures in words, for every report of a plan.
#include <array>
#include <cstdio>
#include <string>

namespace trireme {

/// snprintf into a string of at most 255 characters.
template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

/// Three digits, whole numbers from a thousand on: "0.287", "3123".
std::string number_text(double value);
/// 8.03e9 -> "8.03 B"; "none" where it is not finite.
std::string count_text(double count);
/// Decimal units: 1.5e9 -> "1.5 GB".
std::string bytes_text(double bytes);
/// Times of a step and its parts, to compare: four digits, from seconds to microseconds: "6.800 s", "0.4139 s", "13.20 ms"; nothing is "0 s".
std::string seconds_text(double seconds);
/// Any duration, by itself: in the largest unit of which there are two, from days to microseconds: "2.5 days", "90 min", "13.2 ms".
std::string time_text(double seconds);
std::string percent_text(double share);  ///< 0.123 -> "12.3 %"

}  // namespace trireme
