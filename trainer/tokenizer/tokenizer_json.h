#pragma once
// Hugging Face tokenizer.json with byte-level BPE, or with BPE and byte_fallback. Unsupported settings that affect ids are errors that name the setting, never ignored.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/byte_fallback_json.h"
#include "trainer/tokenizer/decoder.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/pretokenizer.h"

namespace trireme {

struct Merge {
  int32_t left, right, result;
};

/// A model over pieces of text, with what PieceTokenizer needs to know of it beside the vocabulary and the merges.
struct PieceModel {
  enum class Kind : uint8_t { kWordPiece, kUnigram, kWordLevel, kBytePairs };
  Kind kind = Kind::kBytePairs;
  int32_t unknown = -1;                        ///< the unknown token; -1: there is none
  bool fuses_unknown = false;                  ///< BPE: unknown characters that follow each other are one
  std::string prefix, suffix;                  ///< spelling of tokens within a word, and at its end
  int64_t most_characters = 100;               ///< WordPiece: a longer piece is unknown
  std::vector<double> scores;                  ///< Unigram: of each token of the vocabulary
  bool byte_fallback = false;                  ///< Unigram: unknown characters become tokens of bytes
  bool byte_level = false;                     ///< pieces are spelled in the byte-level alphabet
  std::optional<ByteFallbackRules> metaspace;  ///< after the splits, spaces become marks
};

struct TokenizerJson {
  std::vector<std::string> tokens;    ///< [V] the bytes of each id
  std::vector<bool> mergeable;        ///< [V] true if in the model's vocabulary and, if byte-level, spelled in that alphabet: merges can produce it
  std::vector<std::string> spelled;   ///< [V] each token as in the file, if there are fallback rules or a piece model
  std::array<int32_t, 256> byte_ids;  ///< id of each single byte; -1 for a byte that UTF-8 cannot contain and that has no token
  std::vector<Merge> merges;          ///< by rank
  std::vector<AddedToken> added;
  size_t own_added = 0;     ///< those of the file itself, which come first
  PretokenizerRules rules;  ///< without fallback, as the normalizer
  Normalizer normalizer;
  std::optional<ByteFallbackRules> fallback;  ///< BPE with byte_fallback
  std::optional<PieceModel> pieces;           ///< nullopt without fallback: byte-level BPE
  TokenDecoder decoder;                       ///< of a piece model
  bool ignore_merges = false;                 ///< a piece that is itself a token becomes that token without merging

  /// Errors: DataError for a byte that has no token, which then is not UTF-8.
  int32_t byte_id(char byte) const;
};

/// `more`: added tokens that the files beside a tokenizer.json name, by id; those that it has too are ignored. Errors: DataError, prefixed with `where`,
/// the file's name.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where, const std::vector<AddedToken>& more = {});

/// An entry of "added_tokens", or of "added_tokens_decoder" in a tokenizer_config.json, which has no id.
AddedToken parse_added_token(const nlohmann::json& entry, int32_t id, const std::string& where);

/// Spells bytes in the byte-level alphabet, where each byte is a printable character: "Ġthe" for " the".
std::string to_byte_level(std::string_view bytes);
/// Inverse of to_byte_level(); nullopt if `text` has other characters.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace trireme
