// Reader of token directories, on files taken from the input: index.json up to the first NUL, the size of documents.bin in 8-byte words (one byte),
// documents.bin, and tokens.bin.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/data/token_file.h"

namespace trireme::fuzz {
namespace {

struct Parts {
  std::string index;
  std::string_view documents, tokens;
};

Parts cut(std::string_view input) {
  const size_t nul = std::min(input.find('\0'), input.size());
  Parts parts{std::string(input.substr(0, nul)), {}, {}};
  std::string_view rest = input.substr(std::min(nul + 1, input.size()));
  if (rest.empty()) return parts;
  const size_t bytes = 8 * static_cast<size_t>(static_cast<unsigned char>(rest.front()));
  rest.remove_prefix(1);
  parts.documents = rest.substr(0, bytes);
  parts.tokens = rest.substr(std::min(bytes, rest.size()));
  return parts;
}

/// Documents and tokens are either reported as damaged or have the documented properties.
void use(const TokenFile& file) {
  taken([&] {
    int64_t end = 0;
    for (int64_t i = 0; i < file.index().documents; ++i) {
      const TokenFile::Document document = file.document(i);
      require(document.begin == end && document.end >= document.begin && document.end <= file.tokens(), "documents are contiguous");
      end = document.end;
    }
    require(end == file.tokens(), "documents cover all tokens");
  });
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  taken([&] {
    file.read(0, file.tokens(), tokens.data());
    for (const int32_t token : tokens) require(token >= 0 && token < file.index().vocab_size, "every id is in the vocabulary");
  });
  for (int64_t i = 0; i < std::min<int64_t>(file.tokens(), 16); ++i) taken([&] { file.read(file.tokens() - 1 - i, 1, tokens.data()); });
  file.read(file.tokens(), 0, tokens.data());
  if (file.index().has_digests()) taken([&] { file.verify(); });
}

bool takes(const Scratch& scratch, const std::string& index) {
  scratch.put("index.json", index);
  std::optional<TokenFile> file;
  if (!taken([&] { file.emplace(scratch.path().string()); })) return false;
  use(*file);
  return true;
}

}  // namespace

bool accepts(std::string_view input) {
  static const Scratch scratch;
  const Parts parts = cut(input);
  scratch.put("documents.bin", parts.documents);
  scratch.put("tokens.bin", parts.tokens);
  const bool accepted = takes(scratch, parts.index);

  // Once more with counts that match the files, which a mutation rarely gives: the reader's checks of sizes must not hide the code after them.
  TokenIndex index;
  if (!taken([&] { index = TokenIndex::parse(parts.index, "index.json"); })) return false;
  require(TokenIndex::parse(index.to_json(), "written").to_json() == index.to_json(), "a written index can be read back");
  index.tokens = std::max<int64_t>(1, static_cast<int64_t>(parts.tokens.size()) / index.token_bytes());
  index.documents = std::max<int64_t>(1, static_cast<int64_t>(parts.documents.size()) / 8 - 1);
  takes(scratch, index.to_json());
  return accepted;
}

}  // namespace trireme::fuzz
