#include "kernels/cuda/loader.h"

#include <dlfcn.h>

#include <cstdlib>

#include "kernels/core/check.h"

namespace trireme::cuda {

SharedLibrary::SharedLibrary(const std::string& purpose, const std::vector<std::string>& file_names) : purpose_(purpose) {
  std::vector<std::string> folders = {""};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable)) folders.push_back(std::string(home) + "/lib64/");
  }
  folders.emplace_back("/usr/local/cuda/lib64/");
  std::string first_error;
  for (const std::string& folder : folders) {
    for (const std::string& name : file_names) {
      file_ = folder + name;
      handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      if (first_error.empty()) first_error = dlerror();
    }
  }
  throw ConfigError(concat(purpose_, ": cannot load ", file_names.front(), ": ", first_error, " (also searched CUDA_HOME, ",
                           "CUDA_PATH and /usr/local/cuda; add its directory to LD_LIBRARY_PATH)"));
}

void* SharedLibrary::find(const char* symbol) const {
  void* const found = dlsym(handle_, symbol);
  if (found == nullptr) throw ConfigError(concat(purpose_, ": ", file_, " has no symbol ", symbol, ": its version does not match this build"));
  return found;
}

}  // namespace trireme::cuda
