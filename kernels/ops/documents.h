#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// Documents packed into B sequences of T tokens, on the device of the operation: what an operation queues does not depend on them. Row m = b*T + t
/// belongs to the document of the tokens [starts[m], ends[m]) of sequence b, with starts[m] <= t < ends[m].   Undefined: a sequence is one document.
struct Documents {
  Tensor starts, ends;  ///< [B*T] int32

  bool defined() const { return starts.defined(); }
  const int32_t* starts_or_null() const { return defined() ? starts.data<int32_t>() : nullptr; }
  const int32_t* ends_or_null() const { return defined() ? ends.data<int32_t>() : nullptr; }
  /// Those of `count` rows from `first` on.
  Documents rows(int64_t first, int64_t count) const {
    return defined() ? Documents{starts.flat(first, count), ends.flat(first, count)} : Documents{};
  }
};

}  // namespace trireme
