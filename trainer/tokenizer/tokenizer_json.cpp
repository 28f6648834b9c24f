#include "trainer/tokenizer/tokenizer_json.h"

#include <limits>
#include <unordered_map>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/oniguruma.h"

namespace trireme {

using nlohmann::json;

namespace {

using Vocabulary = std::unordered_map<std::string, int32_t>;

/// The character of each byte: the byte's Latin-1 character if printable, otherwise the next from U+0100 on. Source: GPT-2's bytes_to_unicode.
const std::array<std::string, 256>& alphabet() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> made;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      made[byte] = to_utf8(printable ? byte : next++);
    }
    return made;
  }();
  return characters;
}

std::string quoted(const std::string& text) { return json(text).dump(); }

bool parse_normalizer(const json& root, const std::string& where) {
  bool nfc = false;
  if (is_null(root, "normalizer")) return nfc;
  for_each_part(root.at("normalizer"), "normalizers", where, [&](const json& part) {
    const std::string type = string_member(part, "type", where);
    if (type != "NFC") throw DataError(concat(where, ": normalizer ", type, " is not supported; supported: NFC, Sequence"));
    require_known_keys(part, {"type"}, where);
    nfc = true;
  });
  return nfc;
}

std::string parse_split(const json& part, const std::string& where) {
  require_known_keys(part, {"type", "pattern", "behavior", "invert"}, where);
  require_off(part, "invert", concat(where, ": Split"));
  const std::string behavior = string_member(part, "behavior", where);
  if (behavior != "Isolated") throw DataError(concat(where, ": Split with behavior ", behavior, " is not supported; supported: Isolated"));
  const json& pattern = object_member(part, "pattern", where);
  require_known_keys(pattern, {"Regex", "String"}, concat(where, ": Split: \"pattern\""));
  if (pattern.size() != 1) throw DataError(concat(where, ": Split: \"pattern\" must be one Regex or String"));
  return pattern.contains("Regex") ? string_member(pattern, "Regex", where) : quoted_regex(string_member(pattern, "String", where));
}

PretokenizerRules parse_pre_tokenizer(const json& root, const std::string& where) {
  PretokenizerRules rules;
  bool byte_level = false;
  for_each_part(object_member(root, "pre_tokenizer", where), "pretokenizers", where, [&](const json& part) {
    const std::string type = string_member(part, "type", where);
    if (byte_level) throw DataError(concat(where, ": pre_tokenizer ", type, " after ByteLevel is not supported"));
    if (type == "Split") {
      rules.regexes.push_back(parse_split(part, where));
    } else if (type == "Digits") {
      require_known_keys(part, {"type", "individual_digits"}, where);
      rules.regexes.emplace_back(flag(part, "individual_digits", false, where) ? "\\p{N}" : "\\p{N}+");
    } else if (type == "ByteLevel") {
      require_known_keys(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
      byte_level = true;
      if (flag(part, "add_prefix_space", true, where)) rules.prefix_before = static_cast<int>(rules.regexes.size());
      if (flag(part, "use_regex", true, where)) rules.regexes.emplace_back(kNamedPatterns.front().regex);
    } else {
      throw DataError(concat(where, ": pre_tokenizer ", type, " is not supported; supported: ByteLevel, Split, Digits, Sequence"));
    }
  });
  if (!byte_level) throw DataError(concat(where, ": pre_tokenizer without ByteLevel is not supported; only byte-level BPE is"));
  return rules;
}

void check_decoder(const json& root, const std::string& where) {
  const json& decoder = object_member(root, "decoder", where);
  const std::string type = string_member(decoder, "type", concat(where, ": decoder"));
  if (type != "ByteLevel") throw DataError(concat(where, ": decoder ", type, " is not supported; supported: ByteLevel"));
  require_known_keys(decoder, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, concat(where, ": decoder"));  // none affects decoding
}

std::vector<AddedToken> parse_added_tokens(const json& root, const std::string& where) {
  std::vector<AddedToken> added;
  if (is_null(root, "added_tokens")) return added;
  for (const json& entry : array_member(root, "added_tokens", where)) {
    require_known_keys(entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, concat(where, ": added_tokens"));
    const std::string content = string_member(entry, "content", where);
    const std::string here = concat(where, ": added token ", quoted(content));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) require_off(entry, key, here);
    if (content.empty()) throw DataError(concat(here, ": is empty"));
    const bool special = flag(entry, "special", false, here);
    const auto id = integer_member(entry, "id", here, 0, std::numeric_limits<int32_t>::max());
    added.push_back({content, static_cast<int32_t>(id), special, flag(entry, "normalized", !special, here)});
  }
  return added;
}

Vocabulary parse_vocabulary(const json& model, const std::string& where) {
  Vocabulary vocabulary;
  const json& vocab = object_member(model, "vocab", where);
  vocabulary.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items())
    vocabulary.emplace(token, static_cast<int32_t>(integer(id, concat(where, ": vocab: ", quoted(token)), 0, std::numeric_limits<int32_t>::max())));
  return vocabulary;
}

/// The text that a token of a BPE with byte_fallback stands for.
std::string text_of_token(std::string spelled) {
  if (const std::optional<uint8_t> byte = byte_of_token(spelled)) return {static_cast<char>(*byte)};
  for (size_t at = spelled.find(kSpaceMark); at != std::string::npos; at = spelled.find(kSpaceMark, at)) spelled.replace(at, kSpaceMark.size(), " ");
  return spelled;
}

/// Assigns each id its bytes. The ids of the tokens must be 0 to n - 1, each once.
void place_tokens(const Vocabulary& vocabulary, TokenizerJson& made, const std::string& where) {
  std::vector<const std::string*> owners;
  const bool fallback = made.fallback.has_value();
  const auto place = [&](int32_t id, const std::string& text, std::string bytes, bool mergeable) {
    const auto at = static_cast<size_t>(id);
    const std::string* owner = owners[at];
    if (owner && *owner != text) throw DataError(concat(where, ": id ", id, " belongs to two tokens, ", quoted(*owner), " and ", quoted(text)));
    if (owner) return;
    owners[at] = &text;
    made.tokens[at] = std::move(bytes);
    made.mergeable[at] = mergeable;
    if (fallback) made.spelled[at] = text;
  };

  size_t count = vocabulary.size();
  std::unordered_map<std::string_view, const AddedToken*> added;
  for (const AddedToken& token : made.added) {
    if (!added.emplace(token.content, &token).second) throw DataError(concat(where, ": added token ", quoted(token.content), " is a duplicate"));
    const auto known = vocabulary.find(token.content);
    if (known == vocabulary.end()) ++count;
    if (known != vocabulary.end() && known->second != token.id)
      throw DataError(concat(where, ": added token ", quoted(token.content), " has id ", token.id, ", but in the vocabulary ", known->second));
  }
  const auto check_id = [&](const std::string& token, int32_t id) {
    if (static_cast<size_t>(id) >= count)
      throw DataError(concat(where, ": token ", quoted(token), " has id ", id, ", but there are ", count, " tokens: ids must be 0 to ", count - 1,
                             " without gaps"));
  };
  for (const auto& [text, id] : vocabulary) check_id(text, id);
  for (const AddedToken& token : made.added) check_id(token.content, token.id);

  owners.resize(count);
  made.tokens.resize(count);
  made.mergeable.resize(count);
  if (fallback) made.spelled.resize(count);
  for (const auto& [text, id] : vocabulary) {
    std::optional<std::string> bytes = fallback ? text_of_token(text) : from_byte_level(text);
    if (!bytes && !added.contains(text)) throw DataError(concat(where, ": token ", quoted(text), " has characters outside the byte-level alphabet"));
    place(id, text, bytes.value_or(text), bytes.has_value());
  }
  for (const AddedToken& token : made.added) place(token.id, token.content, fallback ? text_of_token(token.content) : token.content, false);
}

std::pair<std::string, std::string> parse_pair(const json& entry, const std::string& where) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  if (!entry.is_string()) throw DataError(concat(where, ": must be \"left right\" or [\"left\", \"right\"]"));
  const std::string& text = entry.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    throw DataError(concat(where, ": ", quoted(text), " must be two tokens separated by one space"));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<Merge> parse_merges(const json& model, const Vocabulary& vocabulary, const std::string& where) {
  std::vector<Merge> merges;
  const json& list = array_member(model, "merges", where);
  merges.reserve(list.size());
  for (const json& entry : list) {
    const auto here = [&] { return concat(where, ": merge ", merges.size()); };
    const std::pair<std::string, std::string> pair = parse_pair(entry, here());
    const auto id = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end())
        throw DataError(concat(here(), " (", quoted(pair.first), ", ", quoted(pair.second), "): ", quoted(token), " is not in the vocabulary"));
      return found->second;
    };
    merges.push_back({id(pair.first), id(pair.second), id(pair.first + pair.second)});
  }
  return merges;
}

/// Normalises the added tokens that are matched in normalised text.
void normalize_added(TokenizerJson& made) {
  std::string room;
  for (AddedToken& token : made.added) {
    if (!token.normalized) continue;
    if (made.nfc) token.content = std::string(to_nfc(token.content, room));
    if (made.fallback && made.fallback->replaces) token.content = with_marks(token.content, made.fallback->prepends);
    const auto id = static_cast<size_t>(token.id);
    if (!made.mergeable[id]) made.tokens[id] = made.fallback ? text_of_token(token.content) : token.content;
  }
}

/// "<0x0A>"
std::string byte_token(size_t byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'};
}

void parse_model(const json& model, TokenizerJson& made, const std::string& where) {
  require_known_keys(model,
                     {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                      "vocab", "merges"},
                     where);
  // unk_token and fuse_unk have no effect: every byte has a token, as checked below.
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) require_off(model, key, where);
  made.ignore_merges = flag(model, "ignore_merges", false, where);
  const Vocabulary vocabulary = parse_vocabulary(model, where);
  place_tokens(vocabulary, made, where);
  made.merges = parse_merges(model, vocabulary, where);
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string token = made.fallback ? byte_token(byte) : alphabet()[byte];
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) throw DataError(concat(where, ": byte ", byte, " (", token, ") has no token in the vocabulary"));
    made.byte_ids[byte] = found->second;
  }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  const json root = parse_object(text, where, ControlCharacters::kInKeys);
  require_known_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"},
                     where);
  if (string_member(root, "version", where) != "1.0")
    throw DataError(concat(where, ": \"version\" is ", root.at("version").dump(), "; supported: \"1.0\""));
  require_off(root, "truncation", where);
  require_off(root, "padding", where);
  const json& model = object_member(root, "model", where);
  const std::string type = is_null(model, "type") ? "BPE" : string_member(model, "type", concat(where, ": model"));
  if (type != "BPE") throw DataError(concat(where, ": model ", type, " is not supported; supported: BPE"));
  TokenizerJson made;
  if (flag(model, "byte_fallback", false, where)) {
    made.fallback = parse_byte_fallback(root, where);
  } else {
    made.nfc = parse_normalizer(root, concat(where, ": normalizer"));
    made.rules = parse_pre_tokenizer(root, concat(where, ": pre_tokenizer"));
    check_decoder(root, where);
  }
  made.added = parse_added_tokens(root, where);
  parse_model(model, made, concat(where, ": model"));
  normalize_added(made);
  return made;
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += alphabet()[static_cast<unsigned char>(byte)];
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> made;
    for (size_t byte = 0; byte < 256; ++byte) made.emplace(alphabet()[byte], static_cast<char>(byte));
    return made;
  }();
  std::string out;
  while (!text.empty()) {
    const auto found = bytes.find(text.substr(0, first_code_point(text).bytes));
    if (found == bytes.end()) return std::nullopt;
    out.push_back(found->second);
    text.remove_prefix(found->first.size());
  }
  return out;
}

}  // namespace trireme
