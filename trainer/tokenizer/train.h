#pragma once
// Trains a byte-level BPE tokenizer: counts pieces of text, then merges the most frequent adjacent pair until the vocabulary is full.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

/// Transparent hash: looks up a std::string_view among std::string keys without a copy.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// Number of occurrences of each piece that the pattern splits the text into. Merges never cross pieces.
using PieceCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

/// Byte-level BPE vocabulary: special tokens, then the 256 bytes in the order of their characters in the byte-level alphabet, then merged tokens.
struct BytePairVocabulary {
  std::vector<std::string> tokens;                  ///< by id, spelled in the byte-level alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< pairs of ids, in order of application
};

/// Merges the most frequent adjacent pair, ties broken towards smaller ids, until there are `vocab_size` tokens or no pair is left. The result
/// depends on the counts alone; time grows with the occurrences merged, not with the text. Calls `made` for each new token.
/// Errors: ConfigError if `special` has a duplicate, an empty token or the spelling of a byte, or if `vocab_size` < special.size() + 256.
/// Source: Sennrich et al. 2016, arXiv:1508.07909, on bytes; order and ties as in BpeTrainer of Hugging Face tokenizers: equal vocabularies.
BytePairVocabulary train_byte_pairs(
    const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special, const std::function<void()>& made = [] {});

/// The tokenizer.json, byte for byte as Hugging Face tokenizers 0.20 and later write it. The first `special` tokens are special.
std::string tokenizer_json(const BytePairVocabulary& vocabulary, const NamedPattern& pattern, size_t special);

}  // namespace trireme
