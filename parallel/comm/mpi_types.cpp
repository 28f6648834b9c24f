#include "parallel/comm/mpi_types.h"

#include <array>

namespace trireme {
namespace {

/// MPI's signature of a reduction: inout := in op inout.
template <class T, ReduceOp kOp>
void reduce_narrow(void* in, void* inout, int* count, MPI_Datatype* /*type*/) {
  const auto* a = static_cast<const T*>(in);
  auto* b = static_cast<T*>(inout);
  for (int64_t i = 0; i < *count; ++i) {
    if constexpr (kOp == ReduceOp::kSum) b[i] = static_cast<T>(a[i] + b[i]);
    if constexpr (kOp == ReduceOp::kMax) b[i] = a[i] < b[i] ? b[i] : a[i];
    if constexpr (kOp == ReduceOp::kMin) b[i] = b[i] < a[i] ? b[i] : a[i];
  }
}

/// Indexed by ReduceOp.
using NarrowOps = std::array<MPI_Op, 3>;
NarrowOps bf16_ops = {MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL};
NarrowOps f16_ops = {MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL};

template <class T>
void make_ops(NarrowOps& ops) {
  constexpr int kCommutative = 1;
  MPI_Op_create(reduce_narrow<T, ReduceOp::kSum>, kCommutative, &ops[static_cast<size_t>(ReduceOp::kSum)]);
  MPI_Op_create(reduce_narrow<T, ReduceOp::kMax>, kCommutative, &ops[static_cast<size_t>(ReduceOp::kMax)]);
  MPI_Op_create(reduce_narrow<T, ReduceOp::kMin>, kCommutative, &ops[static_cast<size_t>(ReduceOp::kMin)]);
}

}  // namespace

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return MPI_DOUBLE;
    case DType::kF32: return MPI_FLOAT;
    case DType::kBF16: return MPI_UINT16_T;
    case DType::kF16: return MPI_UINT16_T;
    case DType::kI64: return MPI_INT64_T;
    case DType::kI32: return MPI_INT32_T;
    case DType::kU8: return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(ReduceOp op, DType dtype) {
  if (dtype == DType::kBF16) return bf16_ops[static_cast<size_t>(op)];
  if (dtype == DType::kF16) return f16_ops[static_cast<size_t>(op)];
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kMin: return MPI_MIN;
  }
  return MPI_OP_NULL;
}

void make_mpi_ops() {
  make_ops<bfloat16>(bf16_ops);
  make_ops<float16>(f16_ops);
}

void free_mpi_ops() {
  for (NarrowOps* ops : {&bf16_ops, &f16_ops})
    for (MPI_Op& op : *ops) MPI_Op_free(&op);
}

}  // namespace trireme
