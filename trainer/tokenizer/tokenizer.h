#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/tokenizer/byte_fallback.h"
#include "trainer/tokenizer/byte_pair.h"
#include "trainer/tokenizer/companions.h"
#include "trainer/tokenizer/piece_tokenizer.h"
#include "trainer/tokenizer/sentencepiece.h"

namespace trireme {

/// Each byte is a token; the vocabulary has 256 tokens, and any input round-trips.
struct ByteTokenizer {};

/// Converts text to token ids and back. Copies share the tables but not the cache: use one copy per thread.
class Tokenizer {
 public:
  /// `spec`: "bytes", a SentencePiece model (*.model), a Hugging Face tokenizer.json (*.json), or a directory with tokenizer.json or else tokenizer.model.
  /// The files beside it are read too: added tokens, ends and begins of text, sampling defaults (TokenizerCompanions).
  /// Errors: ConfigError for any other spec, and for SentencePiece in a build without it; MissingFileError; DataError naming the file, and the format if
  /// it is a known one that is not supported.
  static Tokenizer open(const std::string& spec);

  const std::string& name() const { return name_; }  ///< bytes, sentencepiece, bpe, wordpiece, unigram, wordlevel
  /// Digest of the tokenizer's file and of added tokens that only files beside it name, or "bytes-v1"; equal digests mean equal ids for equal text. Recorded in token directories and checkpoints.
  const std::string& digest() const { return digest_; }
  const std::string& file() const { return file_; }  ///< the file it was read from; empty for bytes
  /// Name and content of the files that a copy needs: "tokenizer.json" or "tokenizer.model", and those beside it; empty for bytes. Errors: IoError.
  std::map<std::string, std::string> copies() const;
  int64_t vocab_size() const { return vocab_size_; }  ///< every id is below it
  /// The token that ends a document, if any: the eos_token or, if none is named, the first eos_token_id of the files beside it that is an added token;
  /// else the eos piece of a SentencePiece model, or the first added token among `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<|im_end|>`.
  std::optional<int32_t> end_of_text() const { return end_; }
  /// Every token at which generation ends: end_of_text() first, then each eos_token_id.
  const std::vector<int32_t>& ends() const { return ends_; }
  std::optional<int32_t> begin_of_text() const { return begin_; }
  const GenerationDefaults& sampling() const { return sampling_; }
  /// Where an end of text would have been named, for a message.
  std::string where_no_end() const;

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
  template <class Any>
  void find_ends(const Any& tokenizer, const TokenizerCompanions& beside, std::optional<int32_t> own_end, std::optional<int32_t> own_begin);

  std::variant<ByteTokenizer, BytePairTokenizer, ByteFallbackTokenizer, PieceTokenizer, SentencePieceTokenizer> kind_;
  std::string name_ = "bytes", digest_ = "bytes-v1", file_;
  int64_t vocab_size_ = 256;
  std::optional<int32_t> end_, begin_;
  std::vector<int32_t> ends_;
  GenerationDefaults sampling_;
};

/// True if every id represents the same text in both. Their digests may differ: an export writes the bytes tokenizer as a tokenizer.json.
bool same_ids(const Tokenizer& a, const Tokenizer& b);

}  // namespace trireme
