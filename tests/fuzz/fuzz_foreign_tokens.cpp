// Reader of token files of other programs, on two files taken from the input: the size of the index in bytes (two bytes, little-endian), the index,
// and the file of ids. Without an index: a file of llm.c or nanoGPT, depending on its first bytes.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/data/token_source.h"

namespace trireme::fuzz {
namespace {

constexpr int64_t kVocabulary = 50257;

void use(const TokenSource& source) {
  require(source.tokens() > 0 && source.documents() > 0, "there is a token and a document");
  require(!source.description().empty(), "the source has a description");
  int64_t end = 0;
  source.visit_documents(0, [&](const TokenFile::Document& document) {
    require(document.begin == end && document.end >= end && document.response == document.begin, "documents are contiguous");
    end = document.end;
    return true;
  });
  require(end == source.tokens(), "documents cover all tokens");
  for (int64_t token = 0; token < std::min<int64_t>(end, 64); ++token) {
    source.visit_documents(source.document_at(token), [&](const TokenFile::Document& document) {
      require(document.begin <= token && token < document.end, "a token is in the document that is found for it");
      return false;
    });
  }
  std::vector<int32_t> tokens(static_cast<size_t>(end));
  taken([&] {
    source.read(0, end, kVocabulary, tokens.data());
    for (const int32_t token : tokens) require(token >= 0 && token < kVocabulary, "every id is in the vocabulary");
  });
  for (int64_t i = 0; i < std::min<int64_t>(end, 16); ++i) taken([&] { source.read(end - 1 - i, 1, kVocabulary, tokens.data()); });
  source.read(end, 0, kVocabulary, tokens.data());
}

}  // namespace

bool accepts(std::string_view input) {
  static const Scratch scratch;
  if (input.size() < 2) return false;
  const size_t size = static_cast<unsigned char>(input[0]) + 256 * static_cast<size_t>(static_cast<unsigned char>(input[1]));
  input.remove_prefix(2);
  const std::string_view index = input.substr(0, size), ids = input.substr(std::min(size, input.size()));
  std::filesystem::remove(scratch.path() / "data.idx");
  if (!index.empty()) scratch.put("data.idx", index);
  const std::filesystem::path path = scratch.put("data.bin", ids);
  std::optional<TokenSource> source;
  if (!taken([&] { source.emplace(path.string()); })) return false;
  use(*source);
  return true;
}

}  // namespace trireme::fuzz
