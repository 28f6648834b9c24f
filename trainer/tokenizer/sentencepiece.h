#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace trireme {

/// A SentencePiece model, run by the SentencePiece library. Copies share the model; thread-safe.
class SentencePieceTokenizer {
 public:
  /// `model`: content of the file; `where`: its name, which prefixes every message. Errors: ConfigError in a build without the library; DataError.
  SentencePieceTokenizer(std::string_view model, const std::string& where);

  int64_t vocab_size() const;
  /// encode and cut: see Tokenizer. The library replaces invalid UTF-8 by U+FFFD.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first) const;
  size_t cut(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id must be in the vocabulary
  /// Counts the space that the library inserts before a document, since pieces do not distinguish it: one byte more than the text has.
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> end_of_text() const;

 private:
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  /// Inserts no space before the text.
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> rest_processor_;
  bool cuttable_ = false;      ///< every word boundary is a token boundary, whatever the context
  bool dummy_prefix_ = false;  ///< the library inserts a space before the text
};

}  // namespace trireme
