#pragma once
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace trireme {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();
inline constexpr double kMaxExtent = 2147483647;  ///< a size that must fit 32 bits

/// What a key decides. Whether a resumed run may change the key, and whether the clone of `trireme verify` takes it over, follow from this alone.
enum class Aspect : uint8_t {
  kMathematics,  ///< what is trained: a resumed run refuses another value, the clone keeps the value
  kExecution,  ///< in which order and portions a rank computes, and averages beside the weights: a resumed run may change it, the clone keeps the value
  kLayout,     ///< how a step is split over ranks: a resumed run may change it, the clone is given layouts of its own
  kOperation,  ///< where a run computes, how it is named, saved, watched and forecast: a resumed run may change it, the clone has the default
};

/// What a key is for those who read, check and describe it.
struct Field {
  const char* key;
  const char* doc;
  double min = -kUnbounded;
  double max = kUnbounded;
  bool above_min = false;                 ///< min itself is not allowed
  bool below_max = false;                 ///< max itself is not allowed
  std::vector<const char*> choices = {};  ///< of a string; empty = any. Those of a OneOf<E> are the names of E, and no declaration repeats them
  const char* auto_rule = nullptr;        ///< what `auto` resolves to; nullptr = `auto` is not a value. A string is auto when it is empty
  const char* auto_word = "auto";         ///< the word that a file has for it
  const char* without_effect = nullptr;   ///< why the key does nothing beside the other values of its section; then it may not be given
  const char* note = nullptr;             ///< added to the refusal of a value that is not one of the choices
  bool required = false;                  ///< a file must give it
  bool or_null = false;                   ///< of an optional key: null may be given, and says the same as leaving it out
  Aspect decides = Aspect::kMathematics;  ///< a key that does not say is refused at a resume
  bool training_only = false;             ///< of a model: given weights compute the same function whatever it says
};

/// The declaration of a key that decides something else than the mathematics.
inline Field with_aspect(Field field, Aspect aspect) {
  field.decides = aspect;
  return field;
}
inline Field execution_key(Field field) { return with_aspect(std::move(field), Aspect::kExecution); }
inline Field layout_key(Field field) { return with_aspect(std::move(field), Aspect::kLayout); }
inline Field operation_key(Field field) { return with_aspect(std::move(field), Aspect::kOperation); }

}  // namespace trireme
