#include "trainer/data/token_file.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they lie on disk: little-endian");

constexpr std::string_view kFormat = "trireme-tokens";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxIndexBytes = 1 << 20;
constexpr const char* kRemedy = "; build it again with `trireme data build`";

TokenIndex read_index(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored))
    throw MissingFileError(concat(directory, ": no such token directory; `trireme data build` makes one"));
  if (!std::filesystem::is_directory(directory, ignored))
    throw DataError(concat(directory, ": not a token directory; `trireme data build` makes one"));
  const std::string path = directory + "/index.json";
  return TokenIndex::parse(read_text(path, kMaxIndexBytes), path);
}

void check_size(const MappedFile& file, int64_t items, int64_t item_bytes, const char* what) {
  if (file.bytes() == items * item_bytes) return;
  const char* verdict = file.bytes() / item_bytes < items ? "truncated" : "too long";
  throw DataError(concat(file.path(), ": ", verdict, ": ", file.bytes(), " bytes, but index.json promises ", items, " ", what, " of ", item_bytes,
                         " bytes = ", items * item_bytes, " bytes", kRemedy));
}

uint64_t read_uint64(const MappedFile& file, int64_t i) {
  uint64_t value = 0;
  std::memcpy(&value, file.data() + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
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
  nlohmann::ordered_json json{
      {"format", kFormat},        {"version", kVersion},          {"tokenizer", tokenizer}, {"tokenizer_digest", tokenizer_digest},
      {"vocab_size", vocab_size}, {"token_bytes", token_bytes()}, {"tokens", tokens},       {"documents", documents}};
  if (prompts) json["prompts"] = true;
  return json.dump(2) + "\n";
}

TokenIndex TokenIndex::parse(const std::string& json_text, const std::string& path) {
  const nlohmann::json json = parse_object(json_text, path);
  if (string_member(json, "format", path) != kFormat) throw DataError(concat(path, ": not an index of format ", kFormat));
  if (const int64_t version = integer_member(json, "version", path); version != kVersion)
    throw DataError(concat(path, ": version ", version, " is not supported; this program reads version ", kVersion));
  require_known_keys(json, {"format", "version", "tokenizer", "tokenizer_digest", "vocab_size", "token_bytes", "tokens", "documents", "prompts"},
                     path);

  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 16;  // sizes in bytes cannot overflow
  TokenIndex index;
  index.tokenizer = string_member(json, "tokenizer", path);
  index.tokenizer_digest = string_member(json, "tokenizer_digest", path);
  index.vocab_size = integer_member(json, "vocab_size", path, 1, std::numeric_limits<int32_t>::max());
  index.tokens = integer_member(json, "tokens", path, 0, kMax);
  index.documents = integer_member(json, "documents", path, 0, kMax);
  if (index.tokens == 0 || index.documents == 0) throw DataError(concat(path, ": holds no token"));
  integer_member(json, "token_bytes", path, index.token_bytes(), index.token_bytes());
  if (json.contains("prompts")) {
    if (!json["prompts"].is_boolean()) throw DataError(concat(path, ": \"prompts\" must be true or false"));
    index.prompts = json["prompts"].get<bool>();
  }
  return index;
}

TokenFile::TokenFile(const std::string& directory)
    : directory_(directory), index_(read_index(directory)), tokens_(directory + "/tokens.bin"), documents_(directory + "/documents.bin") {
  check_size(tokens_, index_.tokens, index_.token_bytes(), "tokens");
  check_size(documents_, index_.documents + 1, sizeof(uint64_t), "offsets");
  if (index_.prompts) check_size(prompts_.emplace(directory + "/prompts.bin"), index_.documents, sizeof(uint64_t), "prompt lengths");
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
  const uint64_t begin = read_uint64(documents_, i);
  const uint64_t end = read_uint64(documents_, i + 1);
  if (begin > end || end > static_cast<uint64_t>(index_.tokens))
    throw DataError(concat(documents_.path(), ": document ", i, " spans tokens ", begin, " to ", end, " of ", index_.tokens, kRemedy));
  const uint64_t prompt = prompts_ ? read_uint64(*prompts_, i) : 0;
  if (prompt > end - begin)
    throw DataError(concat(prompts_->path(), ": document ", i, " has ", end - begin, " tokens, but a prompt of ", prompt, kRemedy));
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end), static_cast<int64_t>(begin + prompt)};
}

}  // namespace trireme
