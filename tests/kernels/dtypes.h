#pragma once
// Checks of operations in some of the dtypes, for sweeps whose cases take them in turn.
#include <vector>

#include "tests/kernels/harness.h"

namespace trireme::testing {

using DTypes = std::vector<DType>;
inline const DTypes kAllDTypes = {DType::kF32, DType::kBF16, DType::kF16};
/// fp32, and one of the 16-bit types: for the n-th of many cases that check how a kernel divides its work, which does not depend on which of them it is.
inline DTypes dtypes_in_turn(size_t n) { return {DType::kF32, n % 2 == 0 ? DType::kBF16 : DType::kF16}; }

/// As the functions of harness.h, which check all of them.
void check_engines(const Operation& operation, double tolerance, const DTypes& dtypes);
#ifdef TRIREME_CUDA
void check_tensor_core_kernels(const Operation& operation, double tolerance, const DTypes& dtypes);
#endif

}  // namespace trireme::testing
