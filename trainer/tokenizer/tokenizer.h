#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/tokenizer/byte_pair.h"
#include "trainer/tokenizer/sentencepiece.h"

namespace trireme {

/// Every byte is a token of its own: any input round-trips, and the vocabulary is 256.
struct ByteTokenizer {};

/// Text to token ids and back. A copy shares the tables and has a cache of its own: one copy for each thread.
class Tokenizer {
 public:
  /// `spec`: "bytes", a SentencePiece model (*.model), a Hugging Face tokenizer.json of the byte-level BPE kind, or a directory with tokenizer.json
  /// or tokenizer.model (of both the first, if it is of that kind).
  /// Errors: ConfigError for any other spec, and for SentencePiece in a build without it; MissingFileError; DataError that names the file and what is
  /// wrong.
  static Tokenizer open(const std::string& spec);

  const std::string& name() const { return name_; }  ///< bytes | sentencepiece | bpe
  /// Equal digests mean equal ids for equal text: of the tokenizer's file, "bytes-v1" for bytes. Token directories and checkpoints carry it.
  const std::string& digest() const { return digest_; }
  const std::string& file() const { return file_; }   ///< what was read; empty for bytes. A copy of it is the whole tokenizer
  int64_t vocab_size() const { return vocab_size_; }  ///< every id is below it
  /// The token that ends a document, where there is one: of a tokenizer.json the eos_token of tokenizer_config.json beside it, else the first of
  /// <|endoftext|>, <|end_of_text|>, </s>, <|im_end|> that it has as an added token.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }

  /// Appends the ids of `text`, special tokens that stand in it included; none is added at its ends. Any bytes are text, invalid UTF-8 too.
  /// `first`: the text begins a document, else it follows a part cut off by cut().
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first = true);
  std::vector<int32_t> encode(std::string_view text);
  /// Where a document may be cut so that its parts, encoded apart, give the ids of the whole: bytes of a prefix of `text`, which begins a document,
  /// or what a cut has left of it where not `first`, and goes on; as long as can be found quickly. 0 where there is no such place in it, or the model
  /// allows none.
  size_t cut(std::string_view text, bool first) const;

  /// Errors: DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;
  /// Bytes of text that each token of the vocabulary stands for; 0 for special ones. What bits per byte are counted with.
  std::vector<int32_t> token_bytes() const;

 private:
  Tokenizer() = default;

  std::variant<ByteTokenizer, BytePairTokenizer, SentencePieceTokenizer> kind_;
  std::string name_ = "bytes", digest_ = "bytes-v1", file_;
  int64_t vocab_size_ = 256;
  std::optional<int32_t> end_of_text_;
};

/// Every id stands for the same text, so that tokens of the one are tokens of the other. Digests may differ: an export writes the bytes tokenizer as a
/// tokenizer.json.
bool same_ids(const Tokenizer& a, const Tokenizer& b);

}  // namespace trireme
