#include "trainer/tokenizer/pretokenizer_json.h"

#include <map>
#include <optional>
#include <utility>

#include "trainer/tokenizer/byte_fallback_json.h"
#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/oniguruma.h"

namespace trireme {

using nlohmann::json;

namespace {

/// The split of a pre_tokenizer that is one regex; nullopt for any other.
std::optional<SplitRule> parse_split(const json& part, const std::string& where) {
  // White_Space and the general categories are spelled out, as the regexes of PCRE2 have others.
  constexpr const char* kPunctuation = R"([!-\/:-@\[-`{-~\p{P}])";
  const std::string type = string_member(part, "type", where);
  const auto behavior = [&](SplitBehavior otherwise) {
    static const std::map<std::string, SplitBehavior> kNames = {{"Isolated", SplitBehavior::kIsolated},
                                                                {"Removed", SplitBehavior::kRemoved},
                                                                {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                                                {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                                                {"Contiguous", SplitBehavior::kContiguous}};
    if (!part.contains("behavior")) return otherwise;
    const auto found = kNames.find(string_member(part, "behavior", where));
    if (found == kNames.end())
      throw DataError(concat(where, ": ", type, ": \"behavior\" is ", part.at("behavior").dump(),
                             "; allowed Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous"));
    return found->second;
  };
  if (type == "Split") {
    require_known_keys(part, {"type", "pattern", "behavior", "invert"}, where);
    return SplitRule{regex_of(part, concat(where, ": Split")), behavior(SplitBehavior::kIsolated), flag(part, "invert", false, where)};
  }
  if (type == "Digits") {
    require_known_keys(part, {"type", "individual_digits"}, where);
    return SplitRule{flag(part, "individual_digits", false, where) ? "\\p{N}" : "\\p{N}+"};
  }
  if (type == "Punctuation") {
    require_known_keys(part, {"type", "behavior"}, where);
    return SplitRule{kPunctuation, behavior(SplitBehavior::kIsolated)};
  }
  if (type == "Whitespace") {
    require_known_keys(part, {"type"}, where);
    const std::string word = concat(kWordCharacters, R"(\x{200C}\x{200D})");  // those of the regexes of Rust, unlike Oniguruma's \w
    return SplitRule{concat("[", word, "]+|[^\\s", word, "]+"), SplitBehavior::kRemoved, true};
  }
  if (type == "WhitespaceSplit") {
    require_known_keys(part, {"type"}, where);
    return SplitRule{R"(\s)", SplitBehavior::kRemoved};
  }
  if (type == "CharDelimiterSplit") {
    require_known_keys(part, {"type", "delimiter"}, where);
    return SplitRule{quoted_regex(string_member(part, "delimiter", where)), SplitBehavior::kRemoved};
  }
  return std::nullopt;
}

}  // namespace

PretokenizerRules parse_pre_tokenizer(const json& root, PieceModel* model, const std::string& where) {
  PretokenizerRules rules;
  bool byte_level = false;
  if (is_null(root, "pre_tokenizer")) return rules;
  for_each_part(root.at("pre_tokenizer"), "pretokenizers", where, [&](const json& part) {
    const std::string type = string_member(part, "type", where);
    if (byte_level) throw DataError(concat(where, " ", type, " after ByteLevel is not supported"));
    if (model != nullptr && model->metaspace) throw DataError(concat(where, " ", type, " after Metaspace is not supported"));
    if (std::optional<SplitRule> rule = parse_split(part, where)) {
      rules.splits.push_back(std::move(*rule));
    } else if (type == "BertPreTokenizer") {
      require_known_keys(part, {"type"}, where);
      for (const char* step : {"WhitespaceSplit", "Punctuation"}) rules.splits.push_back(*parse_split({{"type", step}}, where));
    } else if (type == "Metaspace" && model != nullptr) {
      parse_metaspace(part, model->metaspace.emplace(), where);
    } else if (type == "ByteLevel") {
      require_known_keys(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
      byte_level = true;
      if (flag(part, "add_prefix_space", true, where)) rules.prefix_before = static_cast<int>(rules.splits.size());
      if (flag(part, "use_regex", true, where)) rules.splits.push_back({.regex = std::string(kNamedPatterns.front().regex)});
    } else {
      throw DataError(concat(where, " ", type,
                             " is not supported; supported: ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                             "CharDelimiterSplit, BertPreTokenizer, Metaspace, Sequence"));
    }
  });
  if (model != nullptr) model->byte_level = byte_level;
  return rules;
}

}  // namespace trireme
