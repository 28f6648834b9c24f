#pragma once
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace trireme {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();
inline constexpr double kMaxExtent = 2147483647;  ///< a size that must fit 32 bits

/// What a key affects. This alone determines whether a resumed run may change the key and whether the clone of `trireme verify` keeps it.
enum class Aspect : uint8_t {
  kMathematics,  ///< what is trained: a resumed run refuses another value; the clone keeps the value
  kExecution,    ///< order and chunking of a rank's computation, and the weight average: a resumed run may change it; the clone keeps the value
  kLayout,       ///< how a step is split over ranks: a resumed run may change it; the clone runs the layouts to verify
  kOperation,    ///< device, names, checkpoints, monitoring and forecast: a resumed run may change it; the clone uses the default
};

/// Declaration of a key, for reading, checking and documentation.
struct Field {
  const char* key;
  const char* doc;
  double min = -kUnbounded;
  double max = kUnbounded;
  bool above_min = false;                 ///< min itself is not allowed
  bool below_max = false;                 ///< max itself is not allowed
  std::vector<const char*> choices = {};  ///< allowed strings; empty = any. For OneOf<E>, filled with the names of E
  const char* auto_rule = nullptr;        ///< what `auto` resolves to; nullptr = `auto` is not allowed. An empty string means auto
  const char* auto_name = "auto";         ///< how a file writes `auto`
  const char* without_effect = nullptr;   ///< why the other values make the key ineffective; a file must then not give it
  const char* note = nullptr;             ///< added to the error about a value that is not one of the choices
  const char* items = "path";             ///< what the texts of a list are
  bool required = false;                  ///< a file must give it
  bool or_null = false;                   ///< optional key: null is allowed and means not set
  Aspect decides = Aspect::kMathematics;  ///< the default is strict: a resumed run refuses a change
  bool training_only = false;             ///< model key that does not change the function computed with given weights
};

/// Declares a key that does not affect what is trained.
inline Field with_aspect(Field field, Aspect aspect) {
  field.decides = aspect;
  return field;
}
inline Field execution_key(Field field) { return with_aspect(std::move(field), Aspect::kExecution); }
inline Field layout_key(Field field) { return with_aspect(std::move(field), Aspect::kLayout); }
inline Field operation_key(Field field) { return with_aspect(std::move(field), Aspect::kOperation); }

}  // namespace trireme
