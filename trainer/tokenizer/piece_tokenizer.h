#pragma once
// The models of a tokenizer.json that are neither byte-level BPE nor BPE with byte_fallback: WordPiece, Unigram, WordLevel, and BPE over characters.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/merge_table.h"
#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

struct TokenizerJson;

/// Produces the same ids and texts as the Python package `tokenizers`. What a model has no token for becomes its unknown token or, in a BPE without one, is
/// left out. Copies share the tables but not the buffers: use one copy per thread.
/// Source: Schuster and Nakajima 2012 (WordPiece); Kudo 2018, arXiv:1804.10959 (Unigram).
class PieceTokenizer {
 public:
  /// `description` must have a piece model. Errors: DataError, prefixed with `where`.
  PieceTokenizer(TokenizerJson description, const std::string& where);

  int64_t vocab_size() const;
  /// encode, decode: see Tokenizer.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first);
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id must be in the vocabulary
  /// How many bytes each token adds to a decoded text.
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct Tables;  ///< immutable after construction

  void encode_stretch(std::string_view text, bool begins, std::vector<int32_t>& tokens);
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens);
  void encode_word_piece(std::string_view piece, std::vector<int32_t>& tokens);
  void encode_unigram(std::string_view piece, std::vector<int32_t>& tokens);
  void encode_byte_pairs(std::string_view piece, std::vector<int32_t>& tokens);

  std::shared_ptr<const Tables> tables_;
  Pretokenizer pretokenizer_;
  std::vector<int32_t> ids_;
  MergeBuffers merges_;
};

}  // namespace trireme
