#include "kernels/cuda/library.h"

#include "kernels/core/check.h"
#include "kernels/cuda/loader.h"

namespace trireme::cuda {
namespace {

constexpr int kMajor = CUBLAS_VER_MAJOR;  // struct layouts are compatible within a major version

std::string refusal_of(const SharedLibrary& library) {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  library.load(get_version, "cublasLtGetVersion");
  const auto version = static_cast<int>(get_version());
  return version / 10000 == kMajor ? "" : concat("version ", version / 10000, ".", version % 10000 / 100, ", but this build needs ", kMajor, ".x");
}

CublasLt load() {
  const SharedLibrary library("run.device=cuda", {concat("libcublasLt.so.", kMajor), "libcublasLt.so"}, refusal_of);
  CublasLt table{};
  library.load(table.create, "cublasLtCreate");
  library.load(table.destroy, "cublasLtDestroy");
  library.load(table.version, "cublasLtGetVersion");
  library.load(table.status_string, "cublasLtGetStatusString");
  library.load(table.matmul, "cublasLtMatmul");
  library.load(table.desc_create, "cublasLtMatmulDescCreate");
  library.load(table.desc_destroy, "cublasLtMatmulDescDestroy");
  library.load(table.desc_set, "cublasLtMatmulDescSetAttribute");
  library.load(table.layout_create, "cublasLtMatrixLayoutCreate");
  library.load(table.layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.load(table.preference_create, "cublasLtMatmulPreferenceCreate");
  library.load(table.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.load(table.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  library.load(table.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.load(table.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  return table;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt table = load();
  return table;
}

}  // namespace trireme::cuda
