#pragma once
// Byte-level byte-pair encoding, as described by the tokenizer.json of GPT-2, LLaMA-3 and Qwen.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

struct TokenizerJson;

/// Produces the same ids as the Python package `tokenizers`. Copies share the tables but not the cache and the regex state: use one copy per thread.
/// Source: Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 (bytes as the alphabet).
class BytePairTokenizer {
 public:
  BytePairTokenizer(TokenizerJson description, const std::string& where);
  BytePairTokenizer(const BytePairTokenizer& other);
  BytePairTokenizer& operator=(const BytePairTokenizer& other);
  BytePairTokenizer(BytePairTokenizer&&) noexcept;
  BytePairTokenizer& operator=(BytePairTokenizer&&) noexcept;
  ~BytePairTokenizer();

  int64_t vocab_size() const;
  /// encode, cut, decode and token_bytes: see Tokenizer.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first);
  size_t cut(std::string_view text, bool first) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id must be in the vocabulary
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct Tables;   ///< immutable after construction
  struct Scratch;  ///< cache of recent pieces, and buffers

  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens);
  size_t cut_between_tokens(std::string_view text, bool first) const;  ///< cut without regard to flags of added tokens

  std::shared_ptr<const Tables> tables_;
  Pretokenizer pretokenizer_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace trireme
