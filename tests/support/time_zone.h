#pragma once
#include <ctime>
#include <optional>

#include "tests/support/scoped_variable.h"

namespace trireme::test {

/// Sets the time zone of this process for a scope: "UTC", or "XXX-2" for one that is two hours ahead of it.
class TimeZone {
 public:
  explicit TimeZone(const char* name) : variable_(std::in_place, "TZ", name) { ::tzset(); }
  ~TimeZone() {
    variable_.reset();
    ::tzset();
  }
  TimeZone(const TimeZone&) = delete;
  TimeZone& operator=(const TimeZone&) = delete;

 private:
  std::optional<ScopedVariable> variable_;
};

}  // namespace trireme::test
