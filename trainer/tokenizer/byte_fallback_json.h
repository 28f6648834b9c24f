#pragma once
// The components of a tokenizer.json that was converted from a SentencePiece BPE model, as those of LLaMA 2, Mistral and Gemma.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  ///< U+2581, which stands for a space in tokens

/// How text becomes marked text, in which U+2581 stands for a space. A stretch is the text between two added tokens.
struct ByteFallbackRules {
  enum class Prefix : uint8_t { kNever, kFirst, kAlways };
  bool replaces = false;           ///< normalizer Replace: spaces become marks before the added tokens of normalised text are matched
  bool prepends = false;           ///< normalizer Prepend: a mark comes before each stretch
  bool metaspace = false;          ///< pre_tokenizer Metaspace: spaces become marks after that
  Prefix prefix = Prefix::kNever;  ///< with metaspace: a mark comes before the text, or before each stretch, unless it begins with one
  bool splits = false;             ///< with metaspace: a piece begins at each mark
  bool strips = false;             ///< decoding removes one space from the beginning
};

/// Errors: DataError, prefixed with `where`, for anything that this struct does not express.
ByteFallbackRules parse_byte_fallback(const nlohmann::json& root, const std::string& where);

/// Adds a pre_tokenizer Metaspace. Errors: DataError.
void parse_metaspace(const nlohmann::json& part, ByteFallbackRules& rules, const std::string& where);

/// The text with a mark for each space, after one more mark if `prefix`.
std::string with_marks(std::string_view text, bool prefix);

/// The byte that the token stands for, spelled <0xE2>; nullopt for other tokens.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace trireme
