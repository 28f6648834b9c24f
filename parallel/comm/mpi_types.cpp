#include "parallel/comm/mpi_types.h"

#include <array>

namespace trireme {
namespace {

/// MPI's signature of a reduction: inout := in op inout.
template <ReduceOp kOp>
void reduce_bf16(void* in, void* inout, int* count, MPI_Datatype* /*type*/) {
  const auto* a = static_cast<const bfloat16*>(in);
  auto* b = static_cast<bfloat16*>(inout);
  for (int64_t i = 0; i < *count; ++i) {
    if constexpr (kOp == ReduceOp::kSum) b[i] = static_cast<bfloat16>(a[i] + b[i]);
    if constexpr (kOp == ReduceOp::kMax) b[i] = a[i] < b[i] ? b[i] : a[i];
    if constexpr (kOp == ReduceOp::kMin) b[i] = b[i] < a[i] ? b[i] : a[i];
  }
}

/// By ReduceOp.
std::array<MPI_Op, 3> bf16_ops = {MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL};

}  // namespace

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return MPI_DOUBLE;
    case DType::kF32: return MPI_FLOAT;
    case DType::kBF16: return MPI_UINT16_T;
    case DType::kI32: return MPI_INT32_T;
    case DType::kU8: return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(ReduceOp op, DType dtype) {
  if (dtype == DType::kBF16) return bf16_ops[static_cast<size_t>(op)];
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kMin: return MPI_MIN;
  }
  return MPI_OP_NULL;
}

void make_mpi_ops() {
  constexpr int kCommutative = 1;
  MPI_Op_create(reduce_bf16<ReduceOp::kSum>, kCommutative, &bf16_ops[static_cast<size_t>(ReduceOp::kSum)]);
  MPI_Op_create(reduce_bf16<ReduceOp::kMax>, kCommutative, &bf16_ops[static_cast<size_t>(ReduceOp::kMax)]);
  MPI_Op_create(reduce_bf16<ReduceOp::kMin>, kCommutative, &bf16_ops[static_cast<size_t>(ReduceOp::kMin)]);
}

void free_mpi_ops() {
  for (MPI_Op& op : bf16_ops) MPI_Op_free(&op);
}

}  // namespace trireme
