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

/// A SentencePiece model, run by its own library: the ids and the text are the library's. Copies share the model, which threads may use together.
class SentencePieceTokenizer {
 public:
  /// `model`: the bytes of the file; `where`, its name, opens every message. Errors: ConfigError in a build without the library; DataError.
  SentencePieceTokenizer(std::string_view model, const std::string& where);

  int64_t vocab_size() const;
  /// As those of Tokenizer. Text that is not UTF-8 is what the library makes of it (U+FFFD).
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first) const;
  size_t cut(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id is in the vocabulary
  /// A piece's space counts, and so does the one the library puts before a document, which no piece tells apart: one byte more than the text has.
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> end_of_text() const;

 private:
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> rest_processor_;  ///< puts no space before the text
  bool cuttable_ = false;      ///< a word boundary is a boundary of tokens, whatever stands around it
  bool dummy_prefix_ = false;  ///< the library puts a space before the text
};

}  // namespace trireme
