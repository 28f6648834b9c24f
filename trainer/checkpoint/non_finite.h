#pragma once
// Weights that are infinite or no number: nothing can be trained from them, and digests do not detect them.
#include <cstdint>
#include <map>
#include <string>

#include "kernels/core/dtype.h"

namespace trireme {

/// Elements that are infinite or no number, of the tensors that have such, by name.
using NonFinite = std::map<std::string, int64_t>;

/// How many of `count` elements are not finite, at `data`, which need not be aligned; 0 of a dtype that is not floating.
int64_t count_non_finite(DType dtype, const void* data, int64_t count);

/// "embedding.weight (3 values), head.weight (1 value)": of many tensors the first five, and how many more there are.
std::string to_string(const NonFinite& tensors);

}  // namespace trireme
