// Reader of Hugging Face folders, on files taken from the input: config.json up to the first NUL, model.safetensors.index.json up to the next NUL,
// and, if that is empty, model.safetensors; otherwise the size of the first shard in bytes (two bytes, little-endian), that shard, and the second.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/huggingface/reader.h"

namespace trireme::fuzz {
namespace {

constexpr const char* kShards[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

std::string_view up_to_nul(std::string_view& rest) {
  const std::string_view text = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(text.size() + 1, rest.size()));
  return text;
}

void make_folder(const Scratch& scratch, std::string_view input) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", kShards[0], kShards[1]})
    std::filesystem::remove(scratch.path() / name);
  scratch.put("config.json", up_to_nul(input));
  const std::string_view index = up_to_nul(input);
  if (index.empty()) {
    scratch.put("model.safetensors", input);
    return;
  }
  scratch.put("model.safetensors.index.json", index);
  size_t size = 0;
  for (size_t i = 0; i < 2 && !input.empty(); ++i, input.remove_prefix(1))
    size |= static_cast<size_t>(static_cast<unsigned char>(input.front())) << (8 * i);
  scratch.put(kShards[0], input.substr(0, size));
  scratch.put(kShards[1], input.substr(std::min(size, input.size())));
}

/// Every parameter can be read, with the same numbers as a whole and row by row.
void use(const HuggingFaceReader& reader) {
  require(!reader.names().empty(), "there are parameters");
  for (const std::string& name : reader.names()) {
    const auto [rows, columns] = reader.shape(name);
    require(rows > 0 && columns > 0, "a parameter has elements");
    std::vector<double> whole(static_cast<size_t>(rows * columns)), row(static_cast<size_t>(columns));
    reader.read(name, {{0, 0}, {rows, columns}}, DType::kF64, whole.data());
    for (int64_t r = 0; r < rows; ++r) {
      reader.read(name, {{r, 0}, {1, columns}}, DType::kF64, row.data());
      require(std::equal(row.begin(), row.end(), whole.begin() + r * columns, [](double a, double b) { return a == b || (a != a && b != b); }),
              "a row equals the row of the whole parameter");
    }
  }
}

}  // namespace

bool accepts(std::string_view input) {
  static const Scratch scratch;
  make_folder(scratch, input);
  std::optional<HuggingFaceReader> reader;
  if (!taken([&] { reader.emplace(scratch.path()); })) return false;
  use(*reader);
  return true;
}

}  // namespace trireme::fuzz
