#pragma once
// One product of the simulated cuBLASLt: column-major, d [m,n] = alpha op(a) op(b) + beta c, then the epilogue.
#include <cublasLt.h>

#include <cstdint>

namespace cuda_sim {

inline int64_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

/// Everything except the pointers and their data. It is read when the call is made.
struct Problem {
  int64_t m, n, k;
  int64_t lda, ldb, ldc, ldd, aux_ld;
  bool transpose_a, transpose_b, tf32;
  cudaDataType_t in, out, bias_type;
  uint32_t epilogue;
  int32_t multiprocessors;  ///< CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET

  bool has_bias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  bool has_gelu() const { return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  int64_t a_bytes() const { return lda * (transpose_a ? m : k) * size_of(in); }
  int64_t b_bytes() const { return ldb * (transpose_b ? k : n) * size_of(in); }
};

/// Workspace in bytes of an algorithm that adds the sums of `slices` of k: for the partial sums, and for any long sum.
inline uint64_t workspace_of(const Problem& problem, int64_t slices) {
  return (problem.k >= 64 ? 4096U : 0U) + (slices > 1 ? 4 * static_cast<uint64_t>(slices * problem.m * problem.n) : 0U);
}

struct Call {
  Problem problem;
  int64_t slices;  ///< of k, whose sums are added at the end
  float alpha, beta;
  const void *a, *b, *c, *bias;
  void *d, *aux, *workspace;
};
void compute(const Call& call);

}  // namespace cuda_sim
