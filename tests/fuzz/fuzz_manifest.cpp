// Reader of the table of contents of a checkpoint: manifest.json or, if the input has no "format", the part of one rank.
#include "tests/fuzz/fuzz.h"
#include "trainer/checkpoint/manifest.h"

namespace trireme::fuzz {
namespace {

void check_names(const Contents& contents) {
  for (const auto& [name, file] : contents.files) {
    require(!name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos, "a file name has no path");
    require(file.bytes >= 0, "a file has a size");
  }
  for (const auto& [name, tensor] : contents.tensors)
    for (const StoredBox& stored : tensor.boxes) {
      require(contents.files.contains(stored.file), "the file of a box is listed");
      require(0 <= stored.begin && stored.begin <= stored.end && stored.end <= contents.files.at(stored.file).bytes, "a box is within its file");
      require(!entry_name(name, stored.box).empty(), "a box has a name");
    }
}

/// Counts the boxes over every element of a small tensor.
void check_tiles(const StoredTensor& tensor) {
  constexpr int64_t kMost = 4096;
  const auto [rows, columns] = tensor.shape;
  if (rows == 0 || columns == 0 || rows > kMost / columns) return;
  std::vector<int> covered(static_cast<size_t>(rows * columns));
  for (const StoredBox& stored : tensor.boxes)
    for (int64_t row = 0; row < stored.box.extent[0]; ++row)
      for (int64_t column = 0; column < stored.box.extent[1]; ++column)
        ++covered.at(static_cast<size_t>((stored.box.start[0] + row) * columns + stored.box.start[1] + column));
  for (const int times : covered) require(times == 1, "every element is in exactly one box");
}

bool takes_manifest(const std::string& text) {
  Manifest manifest;
  if (!taken([&] { manifest = parse_manifest(text, "manifest.json"); })) return false;
  check_names(manifest.contents);
  for (const std::string& file : manifest.description.tokenizer.files) require(manifest.contents.files.contains(file), "a tokenizer file is listed");
  for (const auto& [name, tensor] : manifest.contents.tensors) check_tiles(tensor);
  const std::string written = manifest_text(manifest);
  require(manifest_text(parse_manifest(written, "written")) == written, "written text can be read back");
  return true;
}

bool takes_contents(const std::string& text) {
  Contents contents;
  if (!taken([&] { contents = parse_contents(text, "part.json"); })) return false;
  check_names(contents);
  const std::string written = contents_text(contents);
  require(contents_text(parse_contents(written, "written")) == written, "written text can be read back");
  Contents whole = contents;
  require(taken([&] { merge(whole, contents, "part.json"); }) == contents.files.empty(), "no file is written twice");
  taken([&] { check_tiling(contents.tensors, "part.json"); });
  return true;
}

}  // namespace

bool accepts(std::string_view input) {
  const std::string text(input);
  std::string fixed = text;  // a mutation rarely gives a valid digest, and the check of the digest must not hide the code after it
  const bool fixable = taken([&] { fixed = with_digest(text); });
  const bool manifest = takes_manifest(text);
  require(!manifest || (fixable && fixed == text), "the digest is correct");
  const bool below = manifest || (fixable && takes_manifest(fixed));
  const bool contents = takes_contents(text);
  return text.find("\"format\"") == text.npos ? contents : below;
}

}  // namespace trireme::fuzz
