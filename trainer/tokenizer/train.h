#pragma once
// Training a byte-level BPE tokenizer: pieces of text counted, then the most frequent neighbours merged until the vocabulary is full.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

/// So that a std::string_view finds a std::string without a copy.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// How often each piece of text stands in the data; the pieces are bytes as the pattern cuts them. No merge reaches across two of them.
using PieceCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

/// A byte-level BPE: special tokens first, then the 256 bytes in the order of the characters that stand for them, then what merges made.
struct BytePairVocabulary {
  std::vector<std::string> tokens;                  ///< by id, each byte as the character that stands for it
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< ids, in the order in which they are applied
};

/// Merges the most frequent pair of neighbours, of equally frequent ones that of smaller ids, until there are `vocab_size` tokens or no pair is left. The result
/// depends on the counts alone; time grows with the occurrences merged, not with the text. `made` is called for each token.
/// Errors: ConfigError where `special` holds a token twice, an empty one or one that stands for a byte, or `vocab_size` has no room for it and the bytes.
/// Source: Sennrich et al. 2016, arXiv:1508.07909, on bytes; order and ties as BpeTrainer of Hugging Face tokenizers, whose vocabulary it equals.
BytePairVocabulary train_byte_pairs(
    const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special, const std::function<void()>& made = [] {});

/// A tokenizer.json, byte for byte as Hugging Face tokenizers 0.20 and later write it. Its first `special` tokens are the special ones.
std::string tokenizer_json(const BytePairVocabulary& vocabulary, const NamedPattern& pattern, size_t special);

}  // namespace trireme
