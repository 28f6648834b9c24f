#pragma once
// Sources of configuration values, and the violations found in them. Violations are collected so that a user sees all of them at once.
#include <compare>
#include <map>
#include <string>
#include <vector>

namespace trireme {

/// source 0 is the file; source n is the n-th --set, whose line and column count within its value; source -n is the n-th file that was included.
/// Ordered by source, then position.
struct Location {
  int source = 0;
  int line = 1;
  int column = 1;
  auto operator<=>(const Location&) const = default;
};

struct Sources {
  std::string file;                      ///< empty: the configuration was made in code
  std::vector<std::string> sets;         ///< key path of each --set, in order
  std::vector<std::string> included;     ///< path of each file that was included, in the order of reading
  std::string option = "--set";          ///< name of the option that gave the sets, for messages
  std::map<std::string, Location> keys;  ///< every key and section that was given; other keys have their default

  bool given(const std::string& key) const { return keys.contains(key); }
  /// Location of the key, or of the innermost enclosing section that was given, or the start of the file.
  Location locate(const std::string& key) const;
  /// "run.yaml:3:7" or "--set:parallel.tensor"; empty for a configuration made in code.
  std::string name_of(const Location& at) const;
};

struct Violation {
  Location at;
  std::string key;    ///< dotted path; empty if the YAML text itself is invalid
  std::string value;  ///< empty if there is no value to show
  std::string rule;
  std::string allowed = {};
  std::string nearest = {};
};

class Violations {
 public:
  static constexpr size_t kMost = 100;  ///< maximum kept; further violations are only counted

  void add(Violation violation) {
    if (full())
      ++more_;
    else
      list_.push_back(std::move(violation));
  }
  bool full() const { return list_.size() == kMost; }
  bool empty() const { return list_.empty(); }
  /// True if the key or an enclosing section has a violation, so that rules must not read its value.
  bool touch(const std::string& key) const;
  /// One line per violation, in the order of the sources; a last line counts those beyond kMost.
  std::string text(const Sources& sources) const;
  /// Throws ConfigError with text(sources) unless empty.
  void raise(const Sources& sources) const;

 private:
  std::vector<Violation> list_;
  size_t more_ = 0;
};

}  // namespace trireme
