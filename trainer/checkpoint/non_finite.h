#pragma once
// Infinite and NaN weights: training cannot start from them, and digests do not detect them.
#include <cstdint>
#include <map>
#include <string>

#include "kernels/core/dtype.h"

namespace trireme {

/// Number of infinite or NaN elements by tensor name, for tensors that have any.
using NonFinite = std::map<std::string, int64_t>;

/// The number of non-finite elements among `count` at `data`, which need not be aligned; 0 for dtypes that are not floating-point.
int64_t count_non_finite(DType dtype, const void* data, int64_t count);

/// Errors: DataError, prefixed with `where`, if there are any.
void refuse_non_finite(const std::string& where, const NonFinite& tensors);

/// "embedding.weight (3 values), head.weight (1 value)": at most five tensors, then the number of the others.
std::string to_string(const NonFinite& tensors);

}  // namespace trireme
