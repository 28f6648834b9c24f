#include "parallel/sharding/unit_message.h"

namespace trireme {

UnitMessage message_of(const Unit& unit, int64_t begin, int64_t count, DType dtype,
                       const std::function<EncodingOptions(const ParamSpec&)>& encoding) {
  UnitMessage message;
  for (Unit::Segment segment : unit.segments(begin, begin + count)) {
    segment.count = segment.matrix_range().count();
    if (segment.count == 0) continue;
    const EncodingOptions of = encoding(*segment.spec);
    const int64_t bytes = encoded_bytes(of, segment.count, dtype);
    message.parts.push_back({segment, of, message.bytes, bytes});
    message.bytes += (bytes + 7) / 8 * 8;
  }
  return message;
}

Tensor slice_of(const Tensor& tensor, const Unit::Segment& segment, int64_t base) {
  return tensor.defined() ? tensor.flat(segment.flat_begin - base, segment.count) : Tensor();
}

}  // namespace trireme
