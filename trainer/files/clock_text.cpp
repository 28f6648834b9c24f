#include "trainer/files/clock_text.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace trireme {
namespace {

std::string print(const char* pattern, const std::tm& time) {
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), pattern, &time)};
}

std::tm local(WallClock::time_point time) {
  const std::time_t seconds = WallClock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  return parts;
}

}  // namespace

std::string utc_text(WallClock::time_point time) {
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 16> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%03dZ", static_cast<int>(milliseconds % 1000));
  return print("%Y-%m-%dT%H:%M:%S", parts) + fraction.data();
}

std::string utc_text(int64_t nanoseconds) {
  return utc_text(WallClock::time_point(std::chrono::duration_cast<WallClock::duration>(std::chrono::nanoseconds(nanoseconds))));
}

std::optional<WallClock::time_point> time_of_utc(const std::string& text) {
  std::tm parts{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || *rest != '.') return std::nullopt;
  const std::chrono::seconds whole(::timegm(&parts));
  // The clock counts nanoseconds: it ends in 2262.
  if (whole.count() < 0 || whole >= std::chrono::floor<std::chrono::seconds>(WallClock::time_point::max().time_since_epoch())) return std::nullopt;
  const auto time = WallClock::time_point(whole) + std::chrono::milliseconds(std::strtol(rest + 1, nullptr, 10) % 1000);
  return utc_text(time) == text ? std::optional(time) : std::nullopt;  // refuses 2026-02-31 and anything after the Z
}

double seconds_since_1970(WallClock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

std::string local_date(WallClock::time_point time) { return print("%Y-%m-%d", local(time)); }
std::string local_time(WallClock::time_point time) { return print("%H:%M:%S", local(time)); }

}  // namespace trireme
