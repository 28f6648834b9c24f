// Token files of other programs, over a pair of files cut from the input: two bytes that count the bytes of the index, little-endian, that index, and the
// file of ids. No index: a file of llm.c or nanoGPT, by its first bytes.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/data/token_source.h"

namespace trireme::fuzz {
namespace {

constexpr int64_t kVocabulary = 50257;

void use(const TokenSource& source) {
  require(source.tokens() > 0 && source.documents() > 0, "there is a token, and a document that holds it");
  require(!source.description().empty(), "it can be described");
  int64_t end = 0;
  source.visit_documents(0, [&](const TokenFile::Document& document) {
    require(document.begin == end && document.end >= end && document.response == document.begin, "documents follow each other");
    end = document.end;
    return true;
  });
  require(end == source.tokens(), "documents cover all tokens");
  for (int64_t token = 0; token < std::min<int64_t>(end, 64); ++token) {
    source.visit_documents(source.document_at(token), [&](const TokenFile::Document& document) {
      require(document.begin <= token && token < document.end, "a token lies in the document that it is found in");
      return false;
    });
  }
  std::vector<int32_t> tokens(static_cast<size_t>(end));
  taken([&] {
    source.read(0, end, kVocabulary, tokens.data());
    for (const int32_t token : tokens) require(token >= 0 && token < kVocabulary, "every id lies in the vocabulary");
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
