// The product's table of library functions, filled with the simulated ones.
#include "kernels/cuda/library.h"

#include "tests/cuda_sim/cublas_lt.h"

namespace trireme::cuda {

const CublasLt& cublas_lt() {
  static const CublasLt table = {
      .create = cuda_sim::lt_create,
      .destroy = cuda_sim::lt_destroy,
      .version = cuda_sim::lt_version,
      .status_string = cuda_sim::lt_status_string,
      .matmul = cuda_sim::lt_matmul,
      .desc_create = cuda_sim::lt_desc_create,
      .desc_destroy = cuda_sim::lt_desc_destroy,
      .desc_set = cuda_sim::lt_desc_set,
      .layout_create = cuda_sim::lt_layout_create,
      .layout_destroy = cuda_sim::lt_layout_destroy,
      .preference_create = cuda_sim::lt_preference_create,
      .preference_destroy = cuda_sim::lt_preference_destroy,
      .preference_set = cuda_sim::lt_preference_set,
      .heuristic = cuda_sim::lt_heuristic,
      .algorithm_get = cuda_sim::lt_algorithm_get,
  };
  return table;
}

}  // namespace trireme::cuda
