#pragma once
// cuDNN as loaded at its first use, like the libraries of kernels/cuda/library.h. The tests' simulated machine links its own cudnn_library.cpp.
#include <cudnn.h>

#include <string>

#include "kernels/core/check.h"

namespace trireme::cuda {

struct Cudnn {
  void* handle;  ///< of dlopen, for the frontend library
  decltype(&::cudnnGetVersion) version;
  decltype(&::cudnnGetErrorString) error_string;
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
};

/// Errors: ConfigError naming the library and why it could not be loaded.
const Cudnn& cudnn();

/// "9.19.0" for 91900.
inline std::string cudnn_version_text(size_t version) { return concat(version / 10000, ".", version % 10000 / 100, ".", version % 100); }

/// Before it, the frontend copies the lengths of sequences from host memory in every backward, which a captured step could not.
constexpr size_t kOldestCudnn = 91600;
/// Why a library of this version does not fit; empty: it fits.
inline std::string cudnn_refusal(size_t version) {
  if (version / 10000 == CUDNN_MAJOR && version >= kOldestCudnn) return "";
  return concat("version ", cudnn_version_text(version), ", but at least ", cudnn_version_text(kOldestCudnn), " of major version ", CUDNN_MAJOR,
                " is needed");
}

}  // namespace trireme::cuda
