#pragma once
// Byte-level byte-pair encoding, as the tokenizer.json of GPT-2, LLaMA-3 and Qwen describes it.
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

/// Gives the ids of the Python package `tokenizers`. A copy shares the tables and has a cache and a regex state of its own: one copy for each thread.
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
  /// These are Tokenizer's.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool first);
  size_t cut(std::string_view text, bool first) const;
  std::string decode(std::span<const int32_t> tokens) const;  ///< every id is in the vocabulary
  std::vector<int32_t> token_bytes() const;
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct Tables;   ///< what never changes after reading
  struct Scratch;  ///< ids of the pieces seen last, and room for one piece's merges

  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens);

  std::shared_ptr<const Tables> tables_;
  Pretokenizer pretokenizer_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace trireme
