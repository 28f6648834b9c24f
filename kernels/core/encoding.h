#pragma once
#include <cstdint>

namespace trireme {

/// How a range of gradient elements v is encoded for the wire (kernels/ops/compress.h).
enum class Encoding : uint8_t {
  kNone,  ///< the elements as they are, in their own dtype
  kInt8,  ///< block of elements: scale = max|v| / 127 (fp32), then one signed byte each
  kInt4,  ///< scale = max|v| / 7, then four bits each
  kSign,  ///< scale = mean|v|, then one bit each, 1 for v >= 0: zero cannot be sent. The mean makes it a contraction; the root mean square does not
  kTopK,  ///< the elements with the largest |v|, of equal ones the first; fp32 with their indices
  kRandomK,  ///< one element of each of `kept` equal stretches, drawn by (key, draw), which the receiver repeats; fp32 without indices
  kLowRank,  ///< ranks sum whole matrices as two factors (kernels/ops/low_rank.h); not an encoding of a range
};

}  // namespace trireme
