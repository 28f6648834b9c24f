#pragma once
// Hugging Face tokenizer.json with byte-level BPE, or with BPE and byte_fallback. Unsupported settings that affect ids are errors that name the setting, never ignored.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/byte_fallback_json.h"
#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

/// A token that is matched in the text itself, before pre-tokenization.
struct AddedToken {
  std::string content;
  int32_t id;
  bool special;
  bool normalized;  ///< matched after normalisation, in the text between the other added tokens; the content is normalised too
};

struct Merge {
  int32_t left, right, result;
};

struct TokenizerJson {
  std::vector<std::string> tokens;    ///< [V] the bytes of each id
  std::vector<bool> mergeable;        ///< [V] true if in the model's vocabulary and, if byte-level, spelled in that alphabet: merges can produce it
  std::vector<std::string> spelled;   ///< [V] each token as in the file, if there are fallback rules
  std::array<int32_t, 256> byte_ids;  ///< id of each single byte
  std::vector<Merge> merges;          ///< by rank
  std::vector<AddedToken> added;
  PretokenizerRules rules;                    ///< of byte-level BPE, as nfc
  std::optional<ByteFallbackRules> fallback;  ///< nullopt: byte-level BPE
  bool nfc = false;
  bool ignore_merges = false;  ///< a piece that is itself a token becomes that token without merging
};

/// Errors: DataError, prefixed with `where`, the file's name.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

/// Spells bytes in the byte-level alphabet, where each byte is a printable character: "Ġthe" for " the".
std::string to_byte_level(std::string_view bytes);
/// Inverse of to_byte_level(); nullopt if `text` has other characters.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace trireme
