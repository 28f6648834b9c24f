#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace trireme {

/// A SentencePiece model, run by the SentencePiece library. Copies share the model; thread-safe.
class SentencePieceTokenizer {
 public:
  /// `model`: content of the file; `where`: its name, which prefixes every message. `beside`: the added tokens of the files beside it, by id; those that are
  /// pieces of the model are not matched in text. `spaces_after_added`: a space is inserted behind each of the others, as at the begin of a document.
  /// Errors: ConfigError in a build without the library; DataError.
  SentencePieceTokenizer(std::string_view model, const std::string& where, const std::vector<AddedToken>& beside = {},
                         bool spaces_after_added = true);

  int64_t vocab_size() const;
  /// encode and cut: see Tokenizer. The library replaces invalid UTF-8 by U+FFFD.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first) const;
  size_t cut(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id must be in the vocabulary
  /// Counts the space that the library inserts before a document, since pieces do not distinguish it: one byte more than the text has.
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> end_of_text() const;
  std::optional<int32_t> begin_of_text() const;
  /// The token of this spelling that is no text: one beyond the model's pieces, or a control piece.
  std::optional<int32_t> added_token(std::string_view content) const;
  const std::vector<AddedToken>& added() const { return added_; }  ///< beyond the model's pieces

 private:
  void encode_plain(std::string_view text, std::vector<int32_t>& tokens, bool first) const;
  size_t cut_plain(std::string_view text) const;

  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  /// Inserts no space before the text.
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> rest_processor_;
  std::vector<AddedToken> added_;
  AddedTokens matches_;
  size_t longest_added_ = 0;  ///< bytes
  bool spaces_after_added_ = true;
  bool cuttable_ = false;      ///< every word boundary is a token boundary, whatever the context
  bool dummy_prefix_ = false;  ///< the library inserts a space before the text
};

}  // namespace trireme
