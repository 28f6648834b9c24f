#pragma once
// Function tables of the GPU libraries other than the CUDA runtime, with the signatures of their headers. They are loaded when a GPU is first used:
// the CPU path starts without delay, and the binary also starts where they are not installed. The tests' simulated machine links its own library.cpp.
#include <cublasLt.h>

namespace trireme::cuda {

struct CublasLt {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetVersion) version;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algorithm_get;
};

/// Errors: ConfigError naming the library and why it could not be loaded.
const CublasLt& cublas_lt();

}  // namespace trireme::cuda
