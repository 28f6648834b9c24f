#include "trainer/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/core/check.h"

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they lie on disk: little-endian");

constexpr std::string_view kFormat = "trireme-tokens";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxIndexBytes = 1 << 20;
constexpr const char* kRemedy = "; build it again with `trireme data build`";

template <class Json>
int64_t integer(const Json& json, const char* key, int64_t minimum, int64_t maximum, const std::string& path) {
  const auto& value = json.at(key);
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.template get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits && value.template get<int64_t>() >= minimum && value.template get<int64_t>() <= maximum) return value.template get<int64_t>();
  throw DataError(concat(path, ": ", key, "=", value.dump(), ": must be an integer in [", minimum, ", ", maximum, "]"));
}

template <class Json>
std::string text(const Json& json, const char* key, const std::string& path) {
  const auto& value = json.at(key);
  if (!value.is_string()) throw DataError(concat(path, ": ", key, "=", value.dump(), ": must be a string"));
  return value.template get<std::string>();
}

TokenIndex read_index(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored))
    throw MissingFileError(concat(directory, ": no such token directory; `trireme data build` makes one"));
  if (!std::filesystem::is_directory(directory, ignored))
    throw DataError(concat(directory, ": not a token directory; `trireme data build` makes one"));
  const MappedFile file(directory + "/index.json");
  if (file.bytes() > kMaxIndexBytes) throw DataError(concat(file.path(), ": ", file.bytes(), " bytes are too many for an index"));
  return TokenIndex::parse(std::string(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.bytes())), file.path());
}

void check_size(const MappedFile& file, int64_t items, int64_t item_bytes, const char* what) {
  if (file.bytes() == items * item_bytes) return;
  const char* verdict = file.bytes() / item_bytes < items ? "truncated" : "too long";
  throw DataError(concat(file.path(), ": ", verdict, ": ", file.bytes(), " bytes, but index.json promises ", items, " ", what, " of ", item_bytes,
                         " bytes = ", items * item_bytes, " bytes", kRemedy));
}

template <class Id>
void widen(const MappedFile& file, int64_t vocab_size, int64_t begin, int64_t count, int32_t* out) {
  const Id* in = reinterpret_cast<const Id*>(file.data()) + begin;
  for (int64_t i = 0; i < count; ++i) {
    if (static_cast<int64_t>(in[i]) >= vocab_size)
      throw DataError(
          concat(file.path(), ": token ", begin + i, " is ", static_cast<int64_t>(in[i]), ", outside the vocabulary of ", vocab_size, kRemedy));
    out[i] = static_cast<int32_t>(in[i]);
  }
}

}  // namespace

std::string TokenIndex::to_json() const {
  return nlohmann::ordered_json{
             {"format", kFormat},        {"version", kVersion},          {"tokenizer", tokenizer}, {"tokenizer_digest", tokenizer_digest},
             {"vocab_size", vocab_size}, {"token_bytes", token_bytes()}, {"tokens", tokens},       {"documents", documents}}
             .dump(2) +
         "\n";
}

TokenIndex TokenIndex::parse(const std::string& json_text, const std::string& path) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(json_text);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat(path, ": not valid JSON: ", error.what()));
  }
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) throw DataError(concat(path, ": not an index of format ", kFormat));
  if (!json.contains("version") || json["version"] != kVersion)
    throw DataError(concat(path, ": version=", json.value("version", nlohmann::json()).dump(), ": this program reads version ", kVersion));
  const nlohmann::json known = {"format", "version", "tokenizer", "tokenizer_digest", "vocab_size", "token_bytes", "tokens", "documents"};
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) throw DataError(concat(path, ": ", key, ": unknown key"));
  for (const std::string key : known)
    if (!json.contains(key)) throw DataError(concat(path, ": ", key, ": missing key"));

  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 16;  // sizes in bytes cannot overflow
  TokenIndex index;
  index.tokenizer = text(json, "tokenizer", path);
  index.tokenizer_digest = text(json, "tokenizer_digest", path);
  index.vocab_size = integer(json, "vocab_size", 1, std::numeric_limits<int32_t>::max(), path);
  index.tokens = integer(json, "tokens", 0, kMax, path);
  index.documents = integer(json, "documents", 0, kMax, path);
  if (index.tokens == 0 || index.documents == 0) throw DataError(concat(path, ": holds no token"));
  integer(json, "token_bytes", index.token_bytes(), index.token_bytes(), path);
  return index;
}

TokenFile::TokenFile(const std::string& directory)
    : directory_(directory), index_(read_index(directory)), tokens_(directory + "/tokens.bin"), documents_(directory + "/documents.bin") {
  check_size(tokens_, index_.tokens, index_.token_bytes(), "tokens");
  check_size(documents_, index_.documents + 1, sizeof(uint64_t), "offsets");
  if (document(0).begin != 0 || document(index_.documents - 1).end != index_.tokens)
    throw DataError(concat(documents_.path(), ": the documents do not cover tokens 0 to ", index_.tokens, kRemedy));
}

void TokenFile::read(int64_t begin, int64_t count, int32_t* out) const {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens [", begin, ", +", count, ") of ", tokens());
  switch (index_.token_bytes()) {
    case 1: return widen<uint8_t>(tokens_, index_.vocab_size, begin, count, out);
    case 2: return widen<uint16_t>(tokens_, index_.vocab_size, begin, count, out);
    default: return widen<uint32_t>(tokens_, index_.vocab_size, begin, count, out);
  }
}

TokenFile::Document TokenFile::document(int64_t i) const {
  TRIREME_CHECK(i >= 0 && i < index_.documents, "document ", i, " of ", index_.documents);
  uint64_t offsets[2];
  std::memcpy(offsets, documents_.data() + i * static_cast<int64_t>(sizeof(uint64_t)), sizeof offsets);
  if (offsets[0] > offsets[1] || offsets[1] > static_cast<uint64_t>(index_.tokens))
    throw DataError(concat(documents_.path(), ": document ", i, " spans tokens ", offsets[0], " to ", offsets[1], " of ", index_.tokens, kRemedy));
  return {static_cast<int64_t>(offsets[0]), static_cast<int64_t>(offsets[1])};
}

}  // namespace trireme
