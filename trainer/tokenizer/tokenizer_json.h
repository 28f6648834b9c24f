#pragma once
// tokenizer.json of Hugging Face, of the byte-level BPE kind. What changes ids and is not supported is refused by name, never ignored.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

/// A token that is looked for in the text itself, before anything is cut or merged.
struct AddedToken {
  std::string content;
  int32_t id;
  bool special;
  bool normalized;  ///< looked for after normalisation, in what the others have left; the content is normalised too
};

struct Merge {
  int32_t left, right, result;
};

struct TokenizerJson {
  std::vector<std::string> tokens;    ///< [V] the bytes each id stands for
  std::vector<bool> mergeable;        ///< [V] in the model's vocabulary, in the byte-level alphabet: merges may lead to it
  std::array<int32_t, 256> byte_ids;  ///< the token of each single byte
  std::vector<Merge> merges;          ///< by rank
  std::vector<AddedToken> added;
  PretokenizerRules rules;
  bool nfc = false;
  bool ignore_merges = false;  ///< a piece that is a token is that token, whatever the merges say
};

/// `where` (the file's name) opens every message. Errors: DataError.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

/// Bytes in the byte-level alphabet, where each byte is a printable character: "Ġthe" for " the".
std::string spell(std::string_view bytes);
/// The bytes of such a text; none where it has other characters.
std::optional<std::string> unspell(std::string_view text);

}  // namespace trireme
