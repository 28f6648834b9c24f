#pragma once
// The simulated cuBLASLt. It checks the sizes, defaults and required attributes of descriptors. Its heuristic returns algorithms that are valid only
// for the queried problem and alignments, and products reject any other use. It is stricter than the library where the library leaves a mistake
// unnoticed (pointers that are not device memory). Sums are fp32, and the algorithms of a product differ in their order. There is no kernel for rows
// or buffers aligned to less than 4 bytes or biases to less than 16.
#include <cublasLt.h>

#include <cstdint>
#include <functional>

namespace cuda_sim {

struct CublasLtStatistics {
  int64_t heuristics = 0;    ///< calls of the heuristic
  int64_t refused = 0;       ///< searches that found no algorithm
  int64_t products = 0;      ///< queued
  int64_t fused_gelu = 0;    ///< products with a GELU epilogue
  int64_t live_objects = 0;  ///< handles, descriptors, layouts, preferences
  int64_t limited = 0;       ///< products with a target for the number of multiprocessors
  int64_t invalid = 0;       ///< products whose pointers or workspace do not suit their algorithm
};
/// Statistics of the process.
CublasLtStatistics cublas_lt_statistics();

/// The heuristic returns up to kAlgorithms algorithms, as many as the preferred workspace allows. The one at place p of its list sums p + 1 slices of
/// the depth, in the workspace, and adds the sums.
constexpr int kAlgorithms = 5;
/// How the algorithms behave, by their place in the list.
struct AlgorithmBehaviour {
  /// Seconds of a product on the machine's own clock (Options::operation_seconds); null: as other operations.
  std::function<double(int device, int place)> seconds = nullptr;
  int unusable = -1;   ///< the heuristic returns it with an error as its state
  int refused = -1;    ///< the heuristic returns it, and products refuse it
  int identity = 100;  ///< CUBLASLT_ALGO_CONFIG_ID of the first; that of each next one is one higher
};
/// Call it while nothing runs.
void set_algorithms(const AlgorithmBehaviour& behaviour);

cublasStatus_t lt_create(cublasLtHandle_t* handle);
cublasStatus_t lt_destroy(cublasLtHandle_t handle);
size_t lt_version();
const char* lt_status_string(cublasStatus_t status);
cublasStatus_t lt_desc_create(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale);
cublasStatus_t lt_desc_destroy(cublasLtMatmulDesc_t desc);
cublasStatus_t lt_desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes);
cublasStatus_t lt_layout_create(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t ld);
cublasStatus_t lt_layout_destroy(cublasLtMatrixLayout_t layout);
cublasStatus_t lt_preference_create(cublasLtMatmulPreference_t* preference);
cublasStatus_t lt_preference_destroy(cublasLtMatmulPreference_t preference);
cublasStatus_t lt_preference_set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                 size_t bytes);
cublasStatus_t lt_heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                            cublasLtMatmulHeuristicResult_t results[], int* count);
cublasStatus_t lt_algorithm_get(const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                                size_t* written);
cublasStatus_t lt_matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                         const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                         cudaStream_t stream);

}  // namespace cuda_sim
