#pragma once
#include <optional>
#include <string>

#include "kernels/core/dtype.h"

namespace trireme::bench {

/// Dense matrix FLOP/s of a GPU by the name its driver gives it, after the vendor's data sheet (fp32 accumulation, no sparsity; fp32 without tensor
/// cores). Nothing where it is not known: never a guess.
std::optional<double> peak_flops(const std::string& gpu_name, DType dtype);

}  // namespace trireme::bench
