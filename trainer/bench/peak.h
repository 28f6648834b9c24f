#pragma once
#include <optional>
#include <string>

#include "kernels/core/dtype.h"

namespace trireme::bench {

/// Peak dense matrix FLOP/s of a GPU, by its driver name, from the vendor's data sheet (fp32 accumulation, no sparsity; fp32 without tensor cores).
/// nullopt if unknown.
std::optional<double> peak_flops(const std::string& gpu_name, DType dtype);

}  // namespace trireme::bench
