#pragma once
// MPI datatypes and reduction operations. Includes <mpi.h>: only for mpi.cpp.
#define OMPI_SKIP_MPICXX 1  // the C interface only: the old C++ one of Open MPI does not compile without warnings
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "parallel/comm/communicator.h"

namespace trireme {

/// bf16 and fp16, which MPI lacks, are sent as 16-bit integers; only the operations of op_of can reduce them.
MPI_Datatype type_of(DType dtype);
/// In bf16 and fp16 every combination of two ranks' parts is rounded; reduce in fp32 to avoid that.
MPI_Op op_of(ReduceOp op, DType dtype);
/// Make and free the operations for bf16 and fp16: after MPI_Init and before MPI_Finalize.
void make_mpi_ops();
void free_mpi_ops();

/// A datatype of more elements than an int can count.
class LargeType {
 public:
  LargeType(int64_t count, DType dtype, int64_t max_count) {
    const int64_t whole = count / max_count, rest = count % max_count;
    MPI_Datatype chunk;
    MPI_Type_contiguous(static_cast<int>(max_count), type_of(dtype), &chunk);
    int lengths[2] = {static_cast<int>(whole), static_cast<int>(rest)};
    MPI_Aint offsets[2] = {0, static_cast<MPI_Aint>(whole * max_count * size_of(dtype))};
    MPI_Datatype types[2] = {chunk, type_of(dtype)};
    MPI_Type_create_struct(2, lengths, offsets, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&chunk);
  }
  /// MPI keeps the type until the operations that use it are complete.
  ~LargeType() { MPI_Type_free(&type_); }
  LargeType(const LargeType&) = delete;
  LargeType& operator=(const LargeType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
};

}  // namespace trireme
