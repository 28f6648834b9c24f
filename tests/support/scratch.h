#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/run_files.h"

namespace trireme::test {

/// A directory of small files that is removed at the end of the test.
class Scratch {
 public:
  std::string operator/(const std::string& name) const { return (directory_.path / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((directory_.path / name).parent_path());
    std::ofstream(directory_.path / name, std::ios::binary) << content;
    return *this / name;
  }
  std::vector<std::string> names() const { return names_in(directory_.path); }
  static std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  TemporaryDirectory directory_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace trireme::test
