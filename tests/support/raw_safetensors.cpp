#include "tests/support/raw_safetensors.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace trireme::test {

RawTensors read_raw(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  RawTensors tensors;
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).get<size_t>(), end = entry.at("data_offsets").at(1).get<size_t>();
    tensors[name] = {entry.at("dtype").get<std::string>(), entry.at("shape").get<std::vector<int64_t>>(),
                     bytes.substr(sizeof length + length + begin, end - begin)};
  }
  return tensors;
}

void write_raw(const std::filesystem::path& file, const RawTensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(&length), sizeof length);
  stream << text << data;
}

}  // namespace trireme::test
