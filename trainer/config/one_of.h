#pragma once
// A configuration key with a fixed set of values: an enum and one table of its names, shared by reading, checking, the JSON Schema, `config explain`
// and writing.
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {

/// The names of the values of E, in order. Each enum that is used as a key specialises this with an array of const char*.
template <class E>
inline constexpr std::nullptr_t kNames = nullptr;

template <class E>
concept HasNames = !std::is_null_pointer_v<std::remove_cv_t<decltype(kNames<E>)>>;

template <HasNames E>
constexpr const char* name_of(E value) {
  return kNames<E>[static_cast<size_t>(value)];
}

/// A value of E, or a text that is not one of its names. Invalid text is kept until check() reports it; it compares unequal to every value.
template <HasNames E>
class OneOf {
 public:
  constexpr OneOf(E value) : value_(value) {}  // NOLINT(google-explicit-constructor): allows assigning a value to a key
  explicit OneOf(std::string_view text) {
    for (size_t i = 0; i < kNames<E>.size(); ++i) {
      if (kNames<E>[i] != text) continue;
      value_ = static_cast<E>(i);
      return;
    }
    unknown_ = text;
  }

  /// Errors: InternalError if the text is not one of the names.
  E value() const {
    TRIREME_CHECK(unknown_.empty(), unknown_);
    return value_;
  }
  std::string text() const { return unknown_.empty() ? name_of(value_) : unknown_; }
  bool operator==(E value) const { return unknown_.empty() && value_ == value; }
  bool operator==(const OneOf&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const OneOf& one) { return out << one.text(); }

  static std::vector<const char*> names() { return {kNames<E>.begin(), kNames<E>.end()}; }

 private:
  E value_ = E{};
  std::string unknown_;
};

}  // namespace trireme
