#pragma once
// Token ids for training, independent of the file format.
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

/// One entry of data.train or data.validation: a token directory of `trireme data build`; a Megatron dataset PREFIX.bin with PREFIX.idx, given as
/// either file or as PREFIX; an llm.c token file (recognised by its magic number); or a nanoGPT file (any other *.bin: uint16 without a header).
/// Errors: MissingFileError, IoError, DataError naming file and position.
class TokenSource {
 public:
  explicit TokenSource(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t tokens() const;
  int64_t documents() const;             ///< 1 if the format does not record document boundaries
  bool has_document_boundaries() const;  ///< true if the format records document boundaries
  bool prompts() const;                  ///< true for instruction data: documents can begin with a prompt, whose tokens are never targets
  /// Reads tokens [begin, begin + count). Errors: DataError for an id outside [0, vocab_size).
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;
  /// Calls `visit` for the documents from `first` on, in order, until it returns false. Errors: those of TokenFile::DocumentReader.
  void visit_documents(int64_t first, const std::function<bool(const TokenFile::Document&)>& visit) const;
  int64_t document_at(int64_t token) const;  ///< document that contains the token, by binary search
  /// Why the ids of a file that does not record their width may be something else: a warning, as no rule is certain. Empty: nothing is suspicious.
  std::string suspicion() const;
  /// Digest of the tokenizer that produced the ids; nullopt if the format does not record it.
  std::optional<std::string> tokenizer_digest() const;
  /// File with the ids; identifies the source.
  std::string file() const;
  /// Digest of the ids and, if `documents`, of the document boundaries and prompt lengths; nullopt if the source has no index.json with digests.
  std::optional<std::string> digest(bool documents) const;
  /// Format and counts, as hashed by TokenDataset::fingerprint().
  std::string description() const;

 private:
  std::string path_;
  std::variant<TokenFile, NanoGptTokens, LlmcTokens, MegatronTokens> file_;
};

}  // namespace trireme
