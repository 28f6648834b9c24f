#pragma once
// For tests that change each key of a configuration, one at a time.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/visit.h"

namespace trireme::test {

inline void alter(bool& value) { value = !value; }
inline void alter(int64_t& value) { value += 1; }
inline void alter(double& value) { value += 0.25; }
inline void alter(std::string& value) { value += "other"; }
inline void alter(SwitchOrPath& value) { value = std::string("other"); }
template <class E>
void alter(OneOf<E>& value) {
  value = OneOf<E>(value.text() + "other");
}
template <class T>
void alter(std::vector<T>& value) {
  value.emplace_back();
  alter(value.back());
}
template <class T>
void alter(std::optional<T>& value) {
  if (!value) value.emplace();
  alter(*value);
}

/// Alters the field number `target` of a configuration, and notes its path.
class Change {
 public:
  explicit Change(size_t target) : target_(target) {}

  std::string path;
  bool seen_by_writer = false;  ///< false for a key without effect beside the other values: it is not written, and altering it is no change

  template <class T>
  void operator()(const Field& field, T& value) {
    if (next_++ != target_) return;
    path = section_ + field.key;
    seen_by_writer = field.without_effect == nullptr;
    alter(value);
  }
  template <class T>
  void section(const char* key, const char*, T& part) {
    const std::string outer = section_;
    section_ += std::string(key) + ".";
    visit(*this, part);
    section_ = outer;
  }

 private:
  const size_t target_;
  size_t next_ = 0;
  std::string section_;
};

}  // namespace trireme::test
