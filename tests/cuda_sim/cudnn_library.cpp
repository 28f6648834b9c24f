// The product's table of cuDNN's functions, filled with the simulated ones.
#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>

#include "kernels/cuda/loader.h"
#include "tests/cuda_sim/cudnn.h"

namespace trireme::cuda {

const Cudnn& cudnn() {
  if (cuda_sim::cudnn_options().missing) const SharedLibrary none("kernels.attention=cudnn", {"libcudnn.so.9.not_there"});
  static const Cudnn table = {.handle = dlopen(nullptr, RTLD_NOW),  // the program itself
                              .version = cudnnGetVersion,
                              .error_string = cudnnGetErrorString,
                              .create = cudnnCreate,
                              .destroy = cudnnDestroy,
                              .set_stream = cudnnSetStream};
  return table;
}

}  // namespace trireme::cuda
