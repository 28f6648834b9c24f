#pragma once
// Safetensors files as plain bytes, without the product's reader and writer: to make files that the writer would not, and to inspect those it made.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::test {

struct RawTensor {
  std::string dtype;  ///< as in the header
  std::vector<int64_t> shape;
  std::string data;
  bool operator==(const RawTensor&) const = default;
};

using RawTensors = std::map<std::string, RawTensor>;

RawTensors read_raw(const std::filesystem::path& file);
/// In the order of the names, without gaps.
void write_raw(const std::filesystem::path& file, const RawTensors& tensors);

}  // namespace trireme::test
