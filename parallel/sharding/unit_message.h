#pragma once
#include <functional>
#include <vector>

#include "kernels/ops/compress.h"
#include "parallel/sharding/unit.h"

namespace trireme {

/// The message that contains elements of a unit's flat buffer, each parameter encoded by itself. Padding is left out.
struct UnitMessage {
  struct Part {
    Unit::Segment segment;  ///< of one parameter, without the rows that pad a vocabulary
    EncodingOptions encoding;
    int64_t begin;  ///< byte in the message, a multiple of 8
    int64_t bytes;
  };
  std::vector<Part> parts;
  int64_t bytes = 0;  ///< a multiple of 8. Bytes between parts are unspecified, so a sender fills them
};

/// The message of elements [begin, begin + count). `dtype`: of the values that are encoded, f32 or f64. `encoding`: of a parameter.
UnitMessage message_of(const Unit& unit, int64_t begin, int64_t count, DType dtype, const std::function<EncodingOptions(const ParamSpec&)>& encoding);

/// The elements of a segment in a tensor whose first element is `base` of the unit's flat buffer; undefined if the tensor is.
Tensor slice_of(const Tensor& tensor, const Unit::Segment& segment, int64_t base);

}  // namespace trireme
