#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>

#include "kernels/core/check.h"
#include "trainer/config/config.h"
#include "trainer/config/fields.h"
#include "trainer/config/report.h"

namespace trireme {

/// The nearest legal values in [low, high] below and above `value`, as text: "4 or 8".
template <class Legal>
std::string nearest(int64_t value, int64_t low, int64_t high, Legal&& legal) {
  constexpr int64_t kFarthest = 1 << 20;
  std::string out;
  for (int64_t below = std::min(value - 1, high); below >= low && value - below <= kFarthest; --below)
    if (legal(below)) {
      out = std::to_string(below);
      break;
    }
  for (int64_t above = std::max(value + 1, low); above <= high && above - value <= kFarthest; ++above)
    if (legal(above)) return out + (out.empty() ? "" : " or ") + std::to_string(above);
  return out;
}

/// Access to a configuration for the rules between its keys, and the sink for their violations.
class Rules {
 public:
  Rules(const Config& config, const Sources& sources, Violations& violations)
      : table_(table_of(config)), sources_(sources), out_(violations), before_(violations) {}

  /// True if no key of the rule has a violation from the checks of single keys.
  bool apply(std::initializer_list<const char*> keys) const {
    return std::none_of(keys.begin(), keys.end(), [&](const char* key) { return before_.touch(key); });
  }
  bool given(const char* key) const { return sources_.given(key); }
  void broken(const char* key, const std::string& rule, const std::string& allowed = {}, const std::string& nearest = {}) {
    out_.add({sources_.locate(key), key, shown_value(table_.at(key)), rule, allowed, nearest});
  }
  /// Refuses a `value` above `high`.
  void at_most(const char* key, int64_t value, int64_t low, int64_t high, const std::string& why) {
    if (value > high) broken(key, why, concat(low, " to ", high), std::to_string(high));
  }

  /// Reports keys that were given, or differ from their default, but have no effect in this configuration.
  void without_effect() {
    const FieldTable defaults = table_of(Config{});
    for (const FieldRow& row : table_.fields) {
      if (!row.field.without_effect || !(sources_.given(row.path) || row.value != defaults.at(row.path).value)) continue;
      const std::string section = row.path.substr(0, row.path.rfind('.'));
      const bool sound = std::none_of(table_.fields.begin(), table_.fields.end(), [&](const FieldRow& other) {
        return other.path.substr(0, other.path.rfind('.')) == section && before_.touch(other.path);
      });
      if (sound) broken(row.path.c_str(), concat("has no effect: ", row.field.without_effect, "; remove the key"));
    }
  }

 private:
  FieldTable table_;
  const Sources& sources_;
  Violations& out_;
  const Violations before_;
};

}  // namespace trireme
