#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Text to token ids and back: every byte is a token of its own, so any input round-trips and the vocabulary is 256.
class Tokenizer {
 public:
  std::string name() const { return "bytes"; }
  /// Equal digests mean equal ids for equal text. Token directories and checkpoints carry it.
  std::string digest() const { return "bytes-v1"; }
  int64_t vocab_size() const { return 256; }

  /// Appends the ids of `text`. A text may be handed over in pieces cut anywhere.
  void encode(std::string_view text, std::vector<int32_t>& tokens) const;
  std::vector<int32_t> encode(std::string_view text) const;
  /// Errors: DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;
};

/// The tokenizer that a `data.tokenizer` or `--tokenizer` value names. Errors: ConfigError for any but `bytes`.
Tokenizer make_tokenizer(const std::string& spec);

}  // namespace trireme
