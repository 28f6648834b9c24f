#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The normalisation of a SentencePiece model as a tokenizer.json has it: a trie of character sequences (the double array of darts-clone) and what replaces
/// each. Source: spm_precompiled, which `tokenizers` uses.
class PrecompiledNormalization {
 public:
  /// `charsmap`: in base64. Errors: DataError, prefixed with `where`.
  PrecompiledNormalization(const std::string& charsmap, const std::string& where);

  /// Replaces each grapheme cluster of less than six bytes that has an entry, otherwise each of its characters that has one.
  std::string apply(std::string_view text) const;

 private:
  /// Appends the replacement of the shortest prefix of `chunk` that has one. Returns false if none does.
  bool replace(std::string_view chunk, std::string& made) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;  ///< each ended by a zero byte
};

}  // namespace trireme
