#include "trainer/tokenizer/byte_fallback_json.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "trainer/tokenizer/json_parts.h"

namespace trireme {

using nlohmann::json;

namespace {

/// Requires {"type": "Replace", "pattern": {"String": from}, "content": to}.
void require_replace(const json& part, std::string_view from, std::string_view to, const std::string& where) {
  require_known_keys(part, {"type", "pattern", "content"}, where);
  if (part.value("pattern", json()) != json{{"String", from}} || part.value("content", json()) != json(to))
    throw DataError(concat(where, ": Replace with byte_fallback must replace ", json(from).dump(), " by ", json(to).dump()));
}

void parse_normalizers(const json& root, ByteFallbackRules& rules, const std::string& where) {
  if (is_null(root, "normalizer")) return;
  for_each_part(root.at("normalizer"), "normalizers", where, [&](const json& part) {
    const std::string type = string_member(part, "type", where);
    bool& rule = type == "Prepend" ? rules.prepends : rules.replaces;
    if (type == "Prepend") {
      require_known_keys(part, {"type", "prepend"}, where);
      if (string_member(part, "prepend", where) != kSpaceMark) throw DataError(concat(where, ": Prepend must prepend ", json(kSpaceMark).dump()));
    } else if (type == "Replace") {
      require_replace(part, " ", kSpaceMark, where);
    } else {
      throw DataError(concat(where, " ", type, " with byte_fallback is not supported; supported: Prepend, Replace, Sequence"));
    }
    if (rule) throw DataError(concat(where, ": two of ", type, " are not supported"));
    rule = true;
  });
}

void parse_pre_tokenizers(const json& root, ByteFallbackRules& rules, const std::string& where) {
  if (is_null(root, "pre_tokenizer")) return;
  for_each_part(root.at("pre_tokenizer"), "pretokenizers", where, [&](const json& part) {
    const std::string type = string_member(part, "type", where);
    if (type == "Metaspace") return parse_metaspace(part, rules, where);
    // Gemma splits at spaces, of which the normalizer has left none.
    if (type == "Split" && rules.replaces && part.value("pattern", json()) == json{{"String", " "}}) return require_off(part, "invert", where);
    throw DataError(concat(where, " ", type, " with byte_fallback is not supported; supported: Metaspace, none"));
  });
}

void parse_decoders(const json& root, ByteFallbackRules& rules, const std::string& where) {
  std::vector<std::string> types;
  for_each_part(object_member(root, "decoder", where), "decoders", where, [&](const json& part) {
    types.push_back(string_member(part, "type", where));
    if (types.back() == "Replace") return require_replace(part, kSpaceMark, " ", where);
    if (types.back() != "Strip") return require_known_keys(part, {"type"}, where);
    require_known_keys(part, {"type", "content", "start", "stop"}, where);
    if (part != json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}})
      throw DataError(concat(where, ": Strip must remove one space from the beginning"));
  });
  const std::vector<std::string> plain = {"Replace", "ByteFallback", "Fuse"}, stripped = {"Replace", "ByteFallback", "Fuse", "Strip"};
  rules.strips = types == stripped;
  if (types == plain || types == stripped) return;
  std::string found;
  for (const std::string& type : types) found += (found.empty() ? "" : ", ") + type;
  throw DataError(concat(where, " ", found, " with byte_fallback is not supported; supported: Replace, ByteFallback, Fuse, and Strip after them"));
}

}  // namespace

void parse_metaspace(const json& part, ByteFallbackRules& rules, const std::string& where) {
  require_known_keys(part, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}, where);
  if (rules.metaspace) throw DataError(concat(where, ": two of Metaspace are not supported"));
  if (string_member(part, "replacement", where) != kSpaceMark)
    throw DataError(concat(where, ": Metaspace must replace by ", json(kSpaceMark).dump()));
  const bool prefixes = flag(part, "add_prefix_space", true, where);
  const std::string scheme = part.contains("prepend_scheme") ? string_member(part, "prepend_scheme", where) : prefixes ? "always" : "never";
  if (!prefixes && scheme != "never")
    throw DataError(concat(where, ": Metaspace with \"add_prefix_space\" false and \"prepend_scheme\" ", scheme, " is not supported"));
  if (scheme != "never" && scheme != "first" && scheme != "always")
    throw DataError(concat(where, ": \"prepend_scheme\" ", json(scheme).dump(), " is not supported; supported: never, first, always"));
  using enum ByteFallbackRules::Prefix;
  rules.metaspace = true;
  rules.prefix = scheme == "never" ? kNever : scheme == "first" ? kFirst : kAlways;
  rules.splits = flag(part, "split", true, where);
}

std::string with_marks(std::string_view text, bool prefix) {
  std::string marked(prefix ? kSpaceMark : "");
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    marked.append(text.substr(at, space - at));
    if (space < text.size()) marked += kSpaceMark;
    at = space + 1;
  }
  return marked;
}

ByteFallbackRules parse_byte_fallback(const json& root, const std::string& where) {
  ByteFallbackRules rules;
  parse_normalizers(root, rules, concat(where, ": normalizer"));
  parse_pre_tokenizers(root, rules, concat(where, ": pre_tokenizer"));
  parse_decoders(root, rules, concat(where, ": decoder"));
  if (!rules.replaces && !rules.metaspace)
    throw DataError(concat(where, ": BPE with byte_fallback needs normalizer Replace or pre_tokenizer Metaspace, as in LLaMA 2, Mistral and Gemma"));
  if (rules.prepends && rules.metaspace)
    throw DataError(concat(where, ": normalizer Prepend together with pre_tokenizer Metaspace is not supported"));
  return rules;
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  uint8_t byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto read = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return read.ec == std::errc{} && read.ptr == token.data() + 5 ? std::optional(byte) : std::nullopt;
}

}  // namespace trireme
