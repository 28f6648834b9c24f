#include "kernels/cuda/cudnn_library.h"

#include "kernels/core/check.h"
#include "kernels/cuda/loader.h"

namespace trireme::cuda {
namespace {

Cudnn load() {
  const SharedLibrary library("kernels.attention=cudnn", {concat("libcudnn.so.", CUDNN_MAJOR), "libcudnn.so"}, [](const SharedLibrary& found) {
    decltype(&::cudnnGetVersion) get_version = nullptr;
    found.load(get_version, "cudnnGetVersion");
    return cudnn_refusal(get_version());
  });
  Cudnn table{};
  table.handle = library.handle();
  library.load(table.version, "cudnnGetVersion");
  library.load(table.error_string, "cudnnGetErrorString");
  library.load(table.create, "cudnnCreate");
  library.load(table.destroy, "cudnnDestroy");
  library.load(table.set_stream, "cudnnSetStream");
  return table;
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn table = load();
  return table;
}

}  // namespace trireme::cuda
