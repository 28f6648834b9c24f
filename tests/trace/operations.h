#pragma once
// The GPU operations of a training step, at small shapes whose rows allow 16-byte accesses.
#include <vector>

#include "tests/kernels/harness.h"

namespace cuda_trace {

struct Case {
  trireme::testing::Operation operation;
  std::vector<trireme::DType> dtypes;
  int compute_capability = 9;  ///< its major number
};
std::vector<Case> operations();

}  // namespace cuda_trace
