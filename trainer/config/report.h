#pragma once
// Where every value came from, and the violations found in them, collected so that a user sees all of them at once.
#include <compare>
#include <map>
#include <string>
#include <vector>

namespace trireme {

/// source 0 is the file; source n is the n-th --set, where line and column count inside its value. Orders as the user reads.
struct Location {
  int source = 0;
  int line = 1;
  int column = 1;
  auto operator<=>(const Location&) const = default;
};

struct Sources {
  std::string file;                      ///< empty: the configuration was made in code
  std::vector<std::string> sets;         ///< key path of each --set, in order
  std::string option = "--set";          ///< the one that gave them, in messages
  std::map<std::string, Location> keys;  ///< every key and section that was given; what is absent here is a default

  bool given(const std::string& key) const { return keys.contains(key); }
  /// Of the key, or of the innermost section around it that was given, or the top of the file.
  Location locate(const std::string& key) const;
  /// "run.yaml:3:7" or "--set:parallel.tensor"; empty for a configuration made in code.
  std::string name_of(const Location& at) const;
};

struct Violation {
  Location at;
  std::string key;    ///< dotted path; empty when the text itself is broken
  std::string value;  ///< empty when there is none to show
  std::string rule;
  std::string allowed = {};
  std::string nearest = {};
};

class Violations {
 public:
  static constexpr size_t kMost = 100;  ///< kept; the rest is only counted

  void add(Violation violation) {
    if (full())
      ++more_;
    else
      list_.push_back(std::move(violation));
  }
  bool full() const { return list_.size() == kMost; }
  bool empty() const { return list_.empty(); }
  /// The key, or a section around it, has a violation: rules that read its value have nothing to stand on.
  bool touch(const std::string& key) const;
  /// One line each, in the order of the sources; a last line counts what did not fit.
  std::string text(const Sources& sources) const;
  /// Throws ConfigError with that text unless empty.
  void raise(const Sources& sources) const;

 private:
  std::vector<Violation> list_;
  size_t more_ = 0;
};

}  // namespace trireme
