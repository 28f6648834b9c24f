#include "trainer/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/pretokenizer_json.h"

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

/// The type of a component; null if it has none.
json type_of(const json& root, const char* component) {
  const json value = root.value(component, json());
  return value.is_object() ? value.value("type", json()) : json();
}

void parse_added_tokens(const json& root, const std::string& where, const std::vector<AddedToken>& more, TokenizerJson& made) {
  std::vector<AddedToken>& added = made.added;
  if (!is_null(root, "added_tokens"))
    for (const json& entry : array_member(root, "added_tokens", where)) {
      const auto id = integer_member(entry, "id", concat(where, ": added_tokens"), 0, std::numeric_limits<int32_t>::max());
      added.push_back(parse_added_token(entry, static_cast<int32_t>(id), concat(where, ": added_tokens")));
    }
  made.own_added = added.size();
  std::unordered_map<std::string, int32_t> own;
  for (const AddedToken& token : added) own.emplace(token.content, token.id);
  for (const AddedToken& token : more) {
    const auto known = own.find(token.content);
    if (known == own.end())
      added.push_back(token);
    else if (known->second != token.id)
      throw DataError(
          concat(where, ": added token ", quoted(token.content), " has id ", known->second, ", but ", token.id, " in the files beside it"));
  }
}

/// Refuses ids that `tokenizers` would not keep: it ignores those in the file, and numbers the added tokens that the vocabulary lacks behind all others.
void check_added_ids(const Vocabulary& vocabulary, const std::vector<AddedToken>& added, const std::string& where) {
  int64_t next = static_cast<int64_t>(vocabulary.size());
  std::unordered_set<std::string_view> seen;
  for (const AddedToken& token : added) {
    if (!seen.insert(token.content).second) throw DataError(concat(where, ": added token ", quoted(token.content), " is a duplicate"));
    const auto known = vocabulary.find(token.content);
    const int64_t id = known != vocabulary.end() ? known->second : next;
    if (id != token.id)
      throw DataError(concat(where, ": added token ", quoted(token.content), " has id ", token.id, ", but ",
                             known != vocabulary.end() ? "in the vocabulary " : "the library tokenizers would renumber it to ", id,
                             ", so that the file is ambiguous; correct the id"));
    next = std::max(next, id + 1);
  }
}

Vocabulary parse_vocabulary(const json& model, bool unigram, const std::string& where) {
  Vocabulary vocabulary;
  if (unigram) {
    for (const json& entry : array_member(model, "vocab", where)) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        throw DataError(concat(where, ": vocab: entry ", vocabulary.size(), " must be a token and its score"));
      if (!vocabulary.emplace(entry[0].get<std::string>(), static_cast<int32_t>(vocabulary.size())).second)
        throw DataError(concat(where, ": vocab: ", quoted(entry[0].get<std::string>()), " is a duplicate"));
    }
    return vocabulary;
  }
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
  const bool fallback = made.fallback.has_value(), pieces = made.pieces.has_value();
  const auto place = [&](int32_t id, const std::string& text, std::string bytes, bool mergeable) {
    const auto at = static_cast<size_t>(id);
    const std::string* owner = owners[at];
    if (owner && *owner != text) throw DataError(concat(where, ": id ", id, " belongs to two tokens, ", quoted(*owner), " and ", quoted(text)));
    if (owner) return;
    owners[at] = &text;
    made.tokens[at] = std::move(bytes);
    made.mergeable[at] = mergeable;
    if (fallback || pieces) made.spelled[at] = text;
  };

  size_t count = vocabulary.size();
  for (const AddedToken& token : made.added)
    if (!vocabulary.contains(token.content)) ++count;
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
  if (fallback || pieces) made.spelled.resize(count);
  for (const auto& [text, id] : vocabulary) {
    std::optional<std::string> bytes = fallback ? text_of_token(text) : pieces ? text : from_byte_level(text);
    place(id, text, bytes.value_or(text), bytes.has_value());  // no piece is spelled as a token with characters outside the byte-level alphabet
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

/// `prefix`: of the second token of each pair, which the result lacks.
std::vector<Merge> parse_merges(const json& model, const Vocabulary& vocabulary, const std::string& prefix, const std::string& where) {
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
    if (!pair.second.starts_with(prefix)) throw DataError(concat(here(), ": ", quoted(pair.second), " does not begin with ", quoted(prefix)));
    merges.push_back({id(pair.first), id(pair.second), id(pair.first + pair.second.substr(prefix.size()))});
  }
  return merges;
}

/// Normalises the added tokens that are matched in normalised text.
void normalize_added(TokenizerJson& made) {
  std::string room;
  for (AddedToken& token : made.added) {
    if (!token.normalized) continue;
    token.content = std::string(made.normalizer.apply(token.content, room));
    if (made.fallback && made.fallback->replaces) token.content = with_marks(token.content, made.fallback->prepends);
    const auto id = static_cast<size_t>(token.id);
    if (!made.mergeable[id] && !made.pieces) made.tokens[id] = made.fallback ? text_of_token(token.content) : token.content;
  }
}

/// "<0x0A>"
std::string byte_token(size_t byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'};
}

/// The texts of the bytes' tokens, if there are any.
void place_bytes(const Vocabulary& vocabulary, bool required, bool spelled_in_hex, TokenizerJson& made, const std::string& where) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string token = spelled_in_hex ? byte_token(byte) : alphabet()[byte];
    const auto found = vocabulary.find(token);
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (found == vocabulary.end() && in_utf8 && required)
      throw DataError(concat(where, ": byte ", byte, " (", token, ") has no token in the vocabulary"));
    made.byte_ids[byte] = found == vocabulary.end() ? -1 : found->second;
  }
}

/// An optional text; null is none.
std::string text_or(const json& object, const std::string& key, const std::string& otherwise, const std::string& where) {
  return is_null(object, key) ? otherwise : string_member(object, key, where);
}

void parse_piece_model(const json& json_model, const Vocabulary& vocabulary, PieceModel& model, const std::string& where) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) throw DataError(concat(where, ": unk_token ", quoted(token), " is not in the vocabulary"));
    return found->second;
  };
  if (model.kind != PieceModel::Kind::kUnigram) {
    const std::string unknown = text_or(json_model, "unk_token", "", where);
    if (!unknown.empty()) model.unknown = vocabulary.contains(unknown) || model.kind == PieceModel::Kind::kBytePairs ? id_of(unknown) : -1;
    model.fuses_unknown = flag(json_model, "fuse_unk", false, where);
    model.prefix = text_or(json_model, "continuing_subword_prefix", model.kind == PieceModel::Kind::kWordPiece ? "##" : "", where);
    model.suffix = text_or(json_model, "end_of_word_suffix", "", where);
    if (json_model.contains("max_input_chars_per_word")) model.most_characters = integer_member(json_model, "max_input_chars_per_word", where, 1);
    return;
  }
  if (!is_null(json_model, "unk_id"))
    model.unknown = static_cast<int32_t>(integer_member(json_model, "unk_id", where, 0, static_cast<int64_t>(vocabulary.size()) - 1));
  model.byte_fallback = flag(json_model, "byte_fallback", false, where);
  for (const json& entry : json_model.at("vocab")) {
    model.scores.push_back(entry[1].get<double>());
    if (!std::isfinite(model.scores.back()))
      throw DataError(concat(where, ": vocab: the score of entry ", model.scores.size() - 1, " is not finite"));
  }
}

void parse_model(const json& model, TokenizerJson& made, const std::string& where) {
  require_known_keys(model,
                     {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                      "max_input_chars_per_word", "unk_id", "vocab", "merges"},
                     where);
  require_off(model, "dropout", where);
  made.ignore_merges = flag(model, "ignore_merges", false, where);
  const Vocabulary vocabulary = parse_vocabulary(model, made.pieces && made.pieces->kind == PieceModel::Kind::kUnigram, where);
  check_added_ids(vocabulary, made.added, where);
  place_tokens(vocabulary, made, where);
  const bool pairs = !made.pieces || made.pieces->kind == PieceModel::Kind::kBytePairs;
  if (made.pieces) parse_piece_model(model, vocabulary, *made.pieces, where);
  if (pairs) made.merges = parse_merges(model, vocabulary, made.pieces ? made.pieces->prefix : "", where);
  // Without a piece model, unk_token and fuse_unk have no effect: every byte has a token.
  place_bytes(vocabulary, !made.pieces, made.fallback || made.pieces, made, where);
}

/// Whether a component, or one of its parts, is of this type.
bool has_part(const json& root, const std::string& key, const char* list, const char* type, const std::string& where) {
  bool found = false;
  if (!is_null(root, key))
    for_each_part(root.at(key), list, where, [&](const json& part) { found = found || string_member(part, "type", where) == type; });
  return found;
}

/// The type of a model in a file of before the key "type".
std::string type_by_keys(const json& model) {
  if (model.contains("merges")) return "BPE";
  if (model.contains("max_input_chars_per_word")) return "WordPiece";
  return model.value("vocab", json()).is_array() ? "Unigram" : model.contains("vocab") ? "WordLevel" : "BPE";
}

PieceModel::Kind kind_of(const std::string& type, const std::string& where) {
  if (type == "BPE") return PieceModel::Kind::kBytePairs;
  if (type == "WordPiece") return PieceModel::Kind::kWordPiece;
  if (type == "Unigram") return PieceModel::Kind::kUnigram;
  if (type == "WordLevel") return PieceModel::Kind::kWordLevel;
  throw DataError(concat(where, ": model ", type, " is not supported; supported: BPE, WordPiece, Unigram, WordLevel"));
}

}  // namespace

AddedToken parse_added_token(const json& entry, int32_t id, const std::string& where) {
  require_known_keys(entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"}, where);
  AddedToken token{string_member(entry, "content", where), id};
  const std::string here = concat(where, ": ", quoted(token.content));
  if (token.content.empty()) throw DataError(concat(here, ": is empty"));
  token.special = flag(entry, "special", false, here);
  token.normalized = flag(entry, "normalized", !token.special, here);
  token.lstrip = flag(entry, "lstrip", false, here);
  token.rstrip = flag(entry, "rstrip", false, here);
  token.single_word = flag(entry, "single_word", false, here);
  return token;
}

int32_t TokenizerJson::byte_id(char byte) const {
  const auto value = static_cast<unsigned char>(byte);
  if (byte_ids[value] >= 0) return byte_ids[value];
  throw DataError(concat("the text has byte ", int{value}, ", which is not UTF-8, and the tokenizer has no token for it"));
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where, const std::vector<AddedToken>& more) {
  const json root = parse_object(text, where, ControlCharacters::kInKeys);
  require_known_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"},
                     where);
  if (string_member(root, "version", where) != "1.0")
    throw DataError(concat(where, ": \"version\" is ", root.at("version").dump(), "; supported: \"1.0\""));
  // truncation, padding and post_processor are of batches of a model's inputs: they do not change the ids of a text.
  const json& model = object_member(root, "model", where);
  const std::string type = is_null(model, "type") ? type_by_keys(model) : string_member(model, "type", concat(where, ": model"));
  const PieceModel::Kind kind = kind_of(type, where);
  const std::string splits = concat(where, ": pre_tokenizer");
  TokenizerJson made;
  if (kind == PieceModel::Kind::kBytePairs && flag(model, "byte_fallback", false, where)) {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) require_off(model, key, where);
    made.fallback = parse_byte_fallback(root, where);
  } else {
    const bool spelled = !text_or(model, "continuing_subword_prefix", "", where).empty() || !text_or(model, "end_of_word_suffix", "", where).empty();
    const bool bytes = kind == PieceModel::Kind::kBytePairs && !spelled && has_part(root, "pre_tokenizer", "pretokenizers", "ByteLevel", splits) &&
                       type_of(root, "decoder") == "ByteLevel";
    if (!bytes) made.pieces.emplace().kind = kind;
    made.normalizer = Normalizer::parse(root.value("normalizer", json()), concat(where, ": normalizer"));
    made.rules = parse_pre_tokenizer(root, bytes ? nullptr : &*made.pieces, splits);
    made.decoder = TokenDecoder::parse(root.value("decoder", json()), concat(where, ": decoder"));
  }
  parse_added_tokens(root, where, more, made);
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
