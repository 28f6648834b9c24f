#pragma once
// Operands with different alignment: a GPU kernel may use 16-byte accesses only if all operands allow it.
#include "tests/kernels/harness.h"

namespace trireme::testing {

/// The same operation with one operand shifted by one element, which must stay unchanged.
inline Operation with_misaligned(const Operation& operation, size_t index) {
  Operation shifted = operation;
  Operand& operand = shifted.operands[index];
  const Shape shape = operand.shape;
  shifted.name += " with " + operand.name + " misaligned";
  if (operand.role == Role::kAssigned) {
    operand.role = Role::kInPlace;
    operand.values.assign(static_cast<size_t>(shape.numel()), 3.0);
  }
  operand.shape = {shape.numel() + 1};
  operand.values.insert(operand.values.begin(), 3.0);
  operand.free_rows = true;
  shifted.run = [run = operation.run, shape, index](Context& ctx, const std::vector<Tensor>& tensors) {
    std::vector<Tensor> views = tensors;
    views[index] = tensors[index].flat_view(1, shape);
    run(ctx, views);
  };
  return shifted;
}

/// check_engines with each operand misaligned in turn, the others aligned or not. Rows of the operation should be a multiple of 16 bytes.
inline void check_misaligned(const Operation& operation, double tolerance) {
  for (size_t i = 0; i < operation.operands.size(); ++i) check_engines(with_misaligned(operation, i), tolerance);
}

}  // namespace trireme::testing
