#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/tokenizer/byte_fallback.h"
#include "trainer/tokenizer/byte_pair.h"
#include "trainer/tokenizer/sentencepiece.h"

namespace trireme {

/// Each byte is a token; the vocabulary has 256 tokens, and any input round-trips.
struct ByteTokenizer {};

/// Converts text to token ids and back. Copies share the tables but not the cache: use one copy per thread.
class Tokenizer {
 public:
  /// `spec`: "bytes", a SentencePiece model (*.model), a Hugging Face tokenizer.json with byte-level BPE or with BPE and byte_fallback, or a directory with tokenizer.json
  /// or tokenizer.model (if it has both, tokenizer.json if that is byte-level BPE, else tokenizer.model).
  /// Errors: ConfigError for any other spec, and for SentencePiece in a build without it; MissingFileError; DataError naming the file.
  static Tokenizer open(const std::string& spec);

  const std::string& name() const { return name_; }  ///< bytes | sentencepiece | bpe
  /// Digest of the tokenizer's file, or "bytes-v1"; equal digests mean equal ids for equal text. Recorded in token directories and checkpoints.
  const std::string& digest() const { return digest_; }
  const std::string& file() const { return file_; }   ///< the file it was read from, which alone defines the tokenizer; empty for bytes
  int64_t vocab_size() const { return vocab_size_; }  ///< every id is below it
  /// The token that ends a document, if any. For a tokenizer.json: the eos_token of the tokenizer_config.json beside it, else the first added token
  /// among `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<|im_end|>`.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }

  /// Appends the ids of `text`, which may be any bytes. Special tokens in the text are recognised; none are added at its ends.
  /// `first`: the text begins a document; otherwise it follows a part cut off by cut().
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first = true);
  std::vector<int32_t> encode(std::string_view text);
  /// Length in bytes of a prefix of `text` at which the document can be cut: its parts, encoded separately, give the ids of the whole. `text` is
  /// followed by more of the document; it begins the document if `first`, otherwise it follows an earlier cut. Returns the longest such prefix that
  /// can be found quickly; 0 if there is none or the model does not allow cuts.
  size_t cut(std::string_view text, bool first) const;

  /// Errors: DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;
  /// Bytes of text that each token represents, 0 for special tokens; used for bits per byte.
  std::vector<int32_t> token_bytes() const;

 private:
  Tokenizer() = default;

  std::variant<ByteTokenizer, BytePairTokenizer, ByteFallbackTokenizer, SentencePieceTokenizer> kind_;
  std::string name_ = "bytes", digest_ = "bytes-v1", file_;
  int64_t vocab_size_ = 256;
  std::optional<int32_t> end_of_text_;
};

/// True if every id represents the same text in both. Their digests may differ: an export writes the bytes tokenizer as a tokenizer.json.
bool same_ids(const Tokenizer& a, const Tokenizer& b);

}  // namespace trireme
