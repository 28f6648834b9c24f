#pragma once
// Byte-pair encoding over characters, with a token for each byte of a character that has none, as described by the tokenizer.json of LLaMA 2, Mistral
// and Gemma.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/merge_table.h"

namespace trireme {

/// Produces the same ids and texts as the Python package `tokenizers`; a byte that is not UTF-8, which that package does not accept, becomes its byte
/// token. Copies share the tables but not the buffers: use one copy per thread.
class ByteFallbackTokenizer {
 public:
  /// `description` must have fallback rules. Errors: DataError, prefixed with `where`.
  ByteFallbackTokenizer(TokenizerJson description, const std::string& where);

  int64_t vocab_size() const;
  /// encode, cut, decode and token_bytes: see Tokenizer. Bytes that decode to no UTF-8 become U+FFFD each.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first);
  size_t cut(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id must be in the vocabulary
  /// Counts the mark that is inserted before a document as a space of the text: one byte more than the text has.
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct Tables;  ///< immutable after construction

  void encode_stretch(std::string_view marked, std::vector<int32_t>& tokens);
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens);

  std::shared_ptr<const Tables> tables_;
  std::vector<int32_t> ids_;
  MergeBuffers merges_;
};

}  // namespace trireme
