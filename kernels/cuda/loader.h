#pragma once
// A library loaded when it is first used, never closed.
#include <string>
#include <vector>

namespace trireme::cuda {

class SharedLibrary {
 public:
  /// Tries each file name where the system looks for libraries (LD_LIBRARY_PATH, ld.so.cache), then in lib64 of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda.
  /// Errors: ConfigError beginning with `purpose`, with what the loader said.
  SharedLibrary(const std::string& purpose, const std::vector<std::string>& file_names);

  /// Errors: ConfigError naming library and symbol.
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
