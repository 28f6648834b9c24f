#pragma once
// Token ids as training reads them, whatever wrote them.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/data/foreign_tokens.h"
#include "trainer/data/token_file.h"

namespace trireme {

/// One entry of data.train or data.validation: a token directory of `trireme data build`; PREFIX.bin with PREFIX.idx of Megatron, named by either file or by
/// PREFIX; or a token file of llm.c (by its magic number) or of nanoGPT (any other file whose name ends in .bin: uint16 without a header).
/// Errors: MissingFileError, IoError, DataError naming file and position.
class TokenSource {
 public:
  explicit TokenSource(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t tokens() const;
  int64_t documents() const;     ///< 1 where the format does not tell them apart
  bool tells_documents() const;  ///< false: the format has no place for their borders
  bool prompts() const;          ///< some documents begin with tokens that are never targets
  /// Tokens [begin, begin + count). Errors: DataError for an id that is not below `vocab_size`.
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;
  /// Calls `visit` for document `first` and those behind it, in order, until it returns false. Errors: those of TokenFile::DocumentReader.
  void visit_documents(int64_t first, const std::function<bool(const TokenFile::Document&)>& visit) const;
  int64_t document_at(int64_t token) const;  ///< the one that holds it, by bisection
  /// Of the tokenizer that made the ids, where the format says so.
  std::optional<std::string> tokenizer_digest() const;
  /// The file that holds the ids: two sources with the same one are the same.
  std::string file() const;
  /// Of all its ids, and of where its documents and prompts are if `documents`; none where no index.json has it.
  std::optional<std::string> digest(bool documents) const;
  /// What its fingerprint begins with: format and counts.
  std::string description() const;

 private:
  std::string path_;
  std::variant<TokenFile, NanoGptTokens, LlmcTokens, MegatronTokens> file_;
};

}  // namespace trireme
