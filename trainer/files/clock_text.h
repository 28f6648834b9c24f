#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

using WallClock = std::chrono::system_clock;

/// "2026-11-23T11:09:38.123Z", UTC.
std::string utc_text(WallClock::time_point time);
std::string utc_text(int64_t nanoseconds);  ///< since 1970
/// The time that utc_text() gives as `text`; nullopt for any other text, and for times before 1970 and after 2261.
std::optional<WallClock::time_point> time_of_utc(const std::string& text);
double seconds_since_1970(WallClock::time_point time);
/// "2026-11-23", in the local time zone.
std::string local_date(WallClock::time_point time);
/// "12:09:38", in the local time zone.
std::string local_time(WallClock::time_point time);

}  // namespace trireme
