#pragma once
// Compares large results of the GPU with fp64 on the host by sampled rows: the operation runs again on those rows alone.
#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/harness.h"

namespace trireme::testing {

/// A matrix of `unit` rows for each unit of the operation, or a shared matrix that every unit reads.
struct LargeOperand {
  std::string name;
  int64_t columns;
  Role role = Role::kInput;
  DType dtype = DType::kBF16;
  int64_t shared_rows = 0;  ///< more than 0: rows of a shared matrix
  int64_t integers = 0;     ///< more than 0: I32 values below this
  bool positive = false;    ///< absolute values, for second moments
};
/// An operation whose units of `unit` rows (a row; a sequence, where rows depend on each other) are independent. `run` gets the first row of its
/// tensors in the whole, for operations that depend on the position.
struct LargeOperation {
  std::string name;
  int64_t unit;
  std::vector<LargeOperand> operands;
  std::function<void(Context&, const std::vector<Tensor>&, int64_t first_row)> run;
  double tolerance;  ///< relative to the largest element of the sample, beyond the rounding of the result
};

/// The elements of a host tensor.
std::vector<double> values_of(const Tensor& host);

/// Runs the operation on the GPU on `units` units of random values. Returns the largest error of the sampled units, relative to the largest element of
/// a sample, beyond the rounding of the result's dtype. Samples are the first and the last unit, those around element 2^31 of the widest operand, and
/// random ones, `count` in all.
double sampled_error(const LargeOperation& operation, int64_t units, int64_t count);

#ifndef TRIREME_REAL_GPU
/// What the simulated machine runs: a few blocks of each large launch, or of an operation with a launch for each unit the first, middle and last one.
/// kItems: a few blocks of a kernel whose blocks share items, on a machine with a multiprocessor for each item.
enum class Samples { kBlocks, kItems, kLaunches };

/// The same on the simulated machine, which runs samples and holds only the pages that those write: tensors of any size in seconds. The compared units
/// are those that were written. The error is infinite if these do not reach both ends of each result, or if an input was written.
double error_of_few_blocks(const LargeOperation& operation, int64_t units, Samples samples = Samples::kBlocks);
#endif

}  // namespace trireme::testing
