#include "trainer/data/token_file.h"

#include <filesystem>
#include <limits>
#include <string_view>

#include "kernels/core/check.h"
#include "trainer/data/read_ids.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace trireme {
namespace {

constexpr std::string_view kFormat = "trireme-tokens";
constexpr int64_t kVersion = 2, kVersionWithoutDigests = 1;
constexpr int64_t kMaxIndexBytes = 1 << 20;
constexpr const char* kRemedy = "; rebuild it with `trireme data build`";

TokenIndex read_index(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored))
    throw MissingFileError(concat(directory, ": no such token directory; `trireme data build` creates one"));
  if (!std::filesystem::is_directory(directory, ignored))
    throw DataError(concat(directory, ": not a token directory; `trireme data build` creates one"));
  const std::string path = directory + "/index.json";
  return TokenIndex::parse(read_text(path, kMaxIndexBytes), path);
}

void check_size(const RandomAccessFile& file, int64_t items, int64_t item_bytes, const char* what) {
  if (file.bytes() == items * item_bytes) return;
  const char* verdict = file.bytes() / item_bytes < items ? "truncated" : "too long";
  throw DataError(concat(file.path(), ": ", verdict, ": ", file.bytes(), " bytes, but index.json declares ", items, " ", what, " of ", item_bytes,
                         " bytes = ", items * item_bytes, " bytes", kRemedy));
}

}  // namespace

std::string TokenIndex::to_json() const {
  nlohmann::ordered_json json{{"format", kFormat},        {"version", has_digests() ? kVersion : kVersionWithoutDigests},
                              {"tokenizer", tokenizer},   {"tokenizer_digest", tokenizer_digest},
                              {"vocab_size", vocab_size}, {"token_bytes", token_bytes()},
                              {"tokens", tokens},         {"documents", documents}};
  if (prompts) json["prompts"] = true;
  if (!has_digests()) return json.dump(2) + "\n";
  json["tokens_digest"] = tokens_digest;
  json["documents_digest"] = documents_digest;
  if (prompts) json["prompts_digest"] = prompts_digest;
  return json.dump(2) + "\n";
}

TokenIndex TokenIndex::parse(const std::string& json_text, const std::string& path) {
  const nlohmann::json json = parse_object(json_text, path);
  if (string_member(json, "format", path) != kFormat) throw DataError(concat(path, ": not an index of format ", kFormat));
  const int64_t version = integer_member(json, "version", path);
  if (version != kVersion && version != kVersionWithoutDigests)
    throw DataError(concat(path, ": version ", version, " is not supported; supported: ", kVersionWithoutDigests, " and ", kVersion));
  require_known_keys(json,
                     {"format", "version", "tokenizer", "tokenizer_digest", "vocab_size", "token_bytes", "tokens", "documents", "prompts",
                      "tokens_digest", "documents_digest", "prompts_digest"},
                     path);

  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 16;  // sizes in bytes cannot overflow
  TokenIndex index;
  index.tokenizer = string_member(json, "tokenizer", path);
  index.tokenizer_digest = string_member(json, "tokenizer_digest", path);
  index.vocab_size = integer_member(json, "vocab_size", path, 1, std::numeric_limits<int32_t>::max());
  index.tokens = integer_member(json, "tokens", path, 0, kMax);
  index.documents = integer_member(json, "documents", path, 0, kMax);
  if (index.tokens == 0 || index.documents == 0) throw DataError(concat(path, ": contains no tokens"));
  integer_member(json, "token_bytes", path, index.token_bytes(), index.token_bytes());
  if (json.contains("prompts")) {
    if (!json["prompts"].is_boolean()) throw DataError(concat(path, ": \"prompts\" must be true or false"));
    index.prompts = json["prompts"].get<bool>();
  }
  if (version == kVersionWithoutDigests) return index;
  const auto digest = [&](const char* key) {
    const std::string text = string_member(json, key, path);
    if (!is_digest(text)) throw DataError(concat(path, ": \"", key, "\" is not a digest"));
    return text;
  };
  index.tokens_digest = digest("tokens_digest");
  index.documents_digest = digest("documents_digest");
  if (index.prompts) index.prompts_digest = digest("prompts_digest");
  return index;
}

TokenIndex TokenIndex::without_digests() const {
  TokenIndex index = *this;
  index.tokens_digest = index.documents_digest = index.prompts_digest = "";
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
    case 1: return read_ids<uint8_t>(tokens_, 0, begin, count, {index_.vocab_size, kRemedy}, out);
    case 2: return read_ids<uint16_t>(tokens_, 0, begin, count, {index_.vocab_size, kRemedy}, out);
    default: return read_ids<uint32_t>(tokens_, 0, begin, count, {index_.vocab_size, kRemedy}, out);
  }
}

void TokenFile::verify() const {
  if (!index_.has_digests())
    throw ConfigError(
        concat("--verify: ", directory_, ": index.json has no digests, because the directory was built by an earlier version", kRemedy));
  const auto check = [](const RandomAccessFile& file, const std::string& expected) {
    const std::string found = digest_of(file);
    if (found != expected)
      throw DataError(concat(file.path(), ": changed since it was built: digest ", found, ", but index.json records ", expected, kRemedy));
  };
  check(tokens_, index_.tokens_digest);
  check(documents_, index_.documents_digest);
  if (prompts_) check(*prompts_, index_.prompts_digest);
}

TokenFile::DocumentReader::DocumentReader(const TokenFile& file) : file_(file), offsets_(file.documents_, 0, file.index_.documents + 1) {
  if (file.prompts_) prompts_.emplace(*file.prompts_, 0, file.index_.documents);
}

TokenFile::Document TokenFile::DocumentReader::operator[](int64_t i) {
  const TokenIndex& index = file_.index_;
  TRIREME_CHECK(i >= 0 && i < index.documents, "document ", i, " of ", index.documents);
  const uint64_t begin = offsets_[i];
  const uint64_t end = offsets_[i + 1];
  if (begin > end || end > static_cast<uint64_t>(index.tokens))
    throw DataError(concat(file_.documents_.path(), ": document ", i, " spans tokens ", begin, " to ", end, " of ", index.tokens, kRemedy));
  const uint64_t prompt = prompts_ ? (*prompts_)[i] : 0;
  if (prompt > end - begin)
    throw DataError(concat(file_.prompts_->path(), ": document ", i, " has ", end - begin, " tokens, but a prompt of ", prompt, kRemedy));
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end), static_cast<int64_t>(begin + prompt)};
}

}  // namespace trireme
