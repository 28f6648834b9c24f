#include "kernels/cuda/loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "kernels/core/check.h"

namespace fs = std::filesystem;

namespace trireme::cuda {
namespace {

/// Directories in `parent`, sorted; none if it does not exist.
std::vector<fs::path> directories_in(const fs::path& parent) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error))
    if (entry.is_directory(error)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// lib/python3.*/site-packages/nvidia/*/lib of a Python environment.
std::vector<std::string> wheel_folders(const fs::path& environment) {
  std::vector<std::string> folders;
  for (const fs::path& python : directories_in(environment / "lib"))
    for (const fs::path& wheel : directories_in(python / "site-packages/nvidia")) folders.push_back((wheel / "lib/").string());
  return folders;
}

/// Prefixes of file names, in the order of the search.
std::vector<std::string> search_folders() {
  std::vector<std::string> folders = {""};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(variable)) folders.push_back(std::string(home) + "/lib64/");
  folders.emplace_back("/usr/local/cuda/lib64/");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* environment = std::getenv(variable))
      for (std::string& folder : wheel_folders(environment)) folders.push_back(std::move(folder));
  return folders;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& purpose, const std::vector<std::string>& file_names, const Refusal& refusal) : purpose_(purpose) {
  std::string tried;
  for (const std::string& folder : search_folders()) {
    for (const std::string& name : file_names) {
      file_ = folder + name;
      const std::string why = try_to_open(refusal);
      if (handle_ != nullptr) return;
      tried += concat("\n  ", why.find(file_) == why.npos ? file_ + ": " : "", why);
    }
  }
  throw ConfigError(concat(purpose_, ": cannot load ", file_names.front(), "; install it, or add its directory to LD_LIBRARY_PATH; tried:", tried));
}

std::string SharedLibrary::try_to_open(const Refusal& refusal) {
  handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) return dlerror();
  std::string why;
  try {
    if (refusal) why = refusal(*this);
  } catch (const ConfigError& error) {
    why = error.what();
  }
  if (!why.empty()) {
    dlclose(handle_);
    handle_ = nullptr;
  }
  return why;
}

void* SharedLibrary::find(const char* symbol) const {
  void* const found = dlsym(handle_, symbol);
  if (found == nullptr) throw ConfigError(concat(purpose_, ": ", file_, " has no symbol ", symbol, ": its version does not match this build"));
  return found;
}

}  // namespace trireme::cuda
