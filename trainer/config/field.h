#pragma once
#include <limits>
#include <vector>

namespace trireme {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();
inline constexpr double kMaxExtent = 2147483647;  ///< a size that must fit 32 bits

/// What a key is for those who read, check and describe it.
struct Field {
  const char* key;
  const char* doc;
  double min = -kUnbounded;
  double max = kUnbounded;
  bool above_min = false;                 ///< min itself is not allowed
  bool below_max = false;                 ///< max itself is not allowed
  std::vector<const char*> choices = {};  ///< of a string; empty = any
  const char* auto_rule = nullptr;        ///< what `auto` resolves to; nullptr = `auto` is not a value. A string is auto when it is empty
  const char* without_effect = nullptr;   ///< why the key does nothing beside the other values of its section; then it may not be given
  const char* note = nullptr;             ///< added to the refusal of a value that is not one of the choices
  bool required = false;                  ///< a file must give it
};

}  // namespace trireme
