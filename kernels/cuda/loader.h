#pragma once
// A shared library that is loaded at its first use and never closed.
#include <string>
#include <vector>

namespace trireme::cuda {

class SharedLibrary {
 public:
  /// Tries each file name on the system's library search path (LD_LIBRARY_PATH, ld.so.cache), then in lib64 of $CUDA_HOME, $CUDA_PATH and
  /// /usr/local/cuda.
  /// Errors: ConfigError that begins with `purpose` and contains the loader's first error.
  SharedLibrary(const std::string& purpose, const std::vector<std::string>& file_names);

  /// Errors: ConfigError naming the library and the symbol.
  template <class Function>
  void load(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(find(symbol));
  }

 private:
  void* find(const char* symbol) const;

  std::string purpose_;
  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace trireme::cuda
