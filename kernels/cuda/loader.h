#pragma once
// A shared library that is loaded at its first use and never closed.
#include <functional>
#include <string>
#include <vector>

namespace trireme::cuda {

class SharedLibrary {
 public:
  /// Why a library that was found does not fit this build, e.g. "version 12.8, but ..."; empty: it fits. May throw what load() throws.
  using Refusal = std::function<std::string(const SharedLibrary&)>;

  /// Takes the first library that loads and fits. Each file name is tried on the system's library search path (LD_LIBRARY_PATH, ld.so.cache), then in
  /// lib64 of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda, then in the NVIDIA wheels of the active Python environment: site-packages/nvidia/*/lib below
  /// $VIRTUAL_ENV and $CONDA_PREFIX.
  /// Errors: ConfigError that begins with `purpose` and lists each file that was tried, with the reason.
  SharedLibrary(const std::string& purpose, const std::vector<std::string>& file_names, const Refusal& refusal = {});

  /// Errors: ConfigError naming the library and the symbol.
  template <class Function>
  void load(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(find(symbol));
  }

  void* handle() const { return handle_; }  ///< of dlopen

 private:
  void* find(const char* symbol) const;
  std::string try_to_open(const Refusal& refusal);  ///< opens file_; why not, or empty

  std::string purpose_;
  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace trireme::cuda
