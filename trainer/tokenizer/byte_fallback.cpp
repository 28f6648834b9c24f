#include "trainer/tokenizer/byte_fallback.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

using Prefix = ByteFallbackRules::Prefix;

/// True if the text contains a word and, after it, a space or a mark: a token that a boundary between words could divide.
bool spans_words(std::string_view text) {
  bool word = false;
  while (!text.empty()) {
    const bool space = text.starts_with(' ') || text.starts_with(kSpaceMark);
    if (space && word) return true;
    word = !space;
    text.remove_prefix(text.starts_with(kSpaceMark) ? kSpaceMark.size() : 1);
  }
  return false;
}

/// True if a space after the character begins a word.
bool ends_word(const CodePoint& character) {
  constexpr uint32_t kMark = 0x2581;
  return character.bytes > 0 && character.value != ' ' && character.value != kMark;
}

}  // namespace

struct ByteFallbackTokenizer::Tables {
  TokenizerJson description;
  ByteFallbackRules rules;
  MergeTable merges;
  AddedTokens raw, normalized;                          ///< matched before and after normalisation
  size_t longest_added = 0;                             ///< bytes, of `raw`
  std::unordered_map<std::string_view, int32_t> whole;  ///< tokens by their spelling, if ignore_merges
  std::unordered_map<uint32_t, int32_t> characters;     ///< tokens of one character
  std::array<int32_t, 128> ascii{};                     ///< the same for ASCII; -1: none
  std::vector<bool> is_byte;                            ///< [V]
  bool words_apart = true;                              ///< no token can contain the end of a word and a mark after it
  bool cuttable = true;                                 ///< neither can an added token of normalised text

  Tables(TokenizerJson read, const std::string& where)
      : description(std::move(read)), rules(description.fallback.value()), merges(description.merges, where) {
    ascii.fill(-1);
    for (size_t id = 0; id < description.spelled.size(); ++id) place(static_cast<int32_t>(id), description.spelled[id]);
    for (const Merge& merge : description.merges) words_apart = words_apart && !spans_words(description.spelled[static_cast<size_t>(merge.result)]);
    words_apart = words_apart && !description.ignore_merges;  // the whole piece, which has several words, may be a token
    cuttable = words_apart || rules.splits;
    std::vector<AddedToken> before, after;
    for (const AddedToken& token : description.added) {
      (token.normalized ? after : before).push_back(token);
      if (token.normalized)
        cuttable = cuttable && !spans_words(token.content) && !token.reaches();
      else
        longest_added = std::max(longest_added, token.content.size());
    }
    raw = AddedTokens(std::move(before));
    normalized = AddedTokens(std::move(after));
  }

  void place(int32_t id, std::string_view spelled) {
    is_byte.push_back(byte_of_token(spelled).has_value());
    if (!description.mergeable[static_cast<size_t>(id)]) return;
    if (description.ignore_merges) whole.emplace(spelled, id);
    const CodePoint character = first_code_point(spelled);
    if (character.bytes == 0 || character.bytes != spelled.size()) return;
    characters.emplace(character.value, id);
    if (character.value < ascii.size()) ascii[character.value] = id;
  }

  /// The token of a character; -1 if there is none.
  int32_t token_of(uint32_t character) const {
    if (character < ascii.size()) return ascii[character];
    const auto found = characters.find(character);
    return found == characters.end() ? -1 : found->second;
  }
};

ByteFallbackTokenizer::ByteFallbackTokenizer(TokenizerJson description, const std::string& where)
    : tables_(std::make_shared<const Tables>(std::move(description), where)) {}

int64_t ByteFallbackTokenizer::vocab_size() const { return static_cast<int64_t>(tables_->description.tokens.size()); }

void ByteFallbackTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) {
  const Tables& tables = *tables_;
  const ByteFallbackRules& rules = tables.rules;
  between_tokens(tables.raw, text, tokens, [&](std::string_view plain, size_t begin) {
    const bool begins = first || begin > 0;
    const std::string normalized = rules.replaces ? with_marks(plain, rules.prepends && begins) : std::string(plain);
    between_tokens(tables.normalized, normalized, tokens, [&](std::string_view stretch, size_t inner_begin) {
      if (!rules.metaspace) return encode_stretch(stretch, tokens);
      const bool prefixed = (rules.prefix == Prefix::kAlways && (begins || inner_begin > 0)) ||
                            (rules.prefix == Prefix::kFirst && first && begin == 0 && inner_begin == 0);
      encode_stretch(with_marks(stretch, prefixed && !stretch.starts_with(' ') && !stretch.starts_with(kSpaceMark)), tokens);
    });
  });
}

void ByteFallbackTokenizer::encode_stretch(std::string_view marked, std::vector<int32_t>& tokens) {
  const bool splits = tables_->rules.splits;
  if (!splits && !tables_->words_apart) return encode_piece(marked, tokens);
  while (!marked.empty()) {  // word by word; if words do not merge, the ids are those of the whole
    size_t word = 0;
    while (marked.substr(word).starts_with(kSpaceMark) && (word == 0 || !splits)) word += kSpaceMark.size();
    const size_t end = std::min(marked.find(kSpaceMark, word), marked.size());
    encode_piece(marked.substr(0, end), tokens);
    marked.remove_prefix(end);
  }
}

void ByteFallbackTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& tokens) {
  const Tables& tables = *tables_;
  if (const auto found = tables.whole.find(piece); found != tables.whole.end()) return tokens.push_back(found->second);
  ids_.clear();
  while (!piece.empty()) {
    const CodePoint character = first_code_point(piece);
    const size_t bytes = std::max<size_t>(character.bytes, 1);
    const int32_t token = character.bytes > 0 ? tables.token_of(character.value) : -1;
    if (token >= 0)
      ids_.push_back(token);
    else
      for (const char byte : piece.substr(0, bytes)) ids_.push_back(tables.description.byte_id(byte));
    piece.remove_prefix(bytes);
  }
  merge_all(tables.merges, ids_, merges_);
  tokens.insert(tokens.end(), ids_.begin(), ids_.end());
}

size_t ByteFallbackTokenizer::cut(std::string_view text) const {
  const Tables& tables = *tables_;
  if (!tables.cuttable) return 0;
  // An added token that begins after `limit` may be incomplete, or the beginning of a longer one.
  const size_t limit = text.size() - std::min(text.size(), tables.longest_added > 0 ? tables.longest_added - 1 : 0);
  size_t last = 0;
  for (size_t at = 0; at < limit;) {
    const AddedTokens::Match match = tables.raw.find(text, at);
    const std::string_view plain = text.substr(at, std::min(match.begin, limit) - at);
    for (size_t space = plain.rfind(' '); space != plain.npos && space > 0; space = plain.rfind(' ', space - 1)) {
      if (!ends_word(last_code_point(plain.substr(0, space)))) continue;
      last = at + space;
      break;
    }
    at = match.end;
  }
  return last > 0 && tables.raw.allow_cut(text, last, limit) ? last : 0;
}

std::string ByteFallbackTokenizer::decode(std::span<const int32_t> tokens) const {
  const Tables& tables = *tables_;
  std::string text, run;  // `run`: the byte tokens since the last other token
  const auto finish_run = [&] {
    if (valid_utf8(run) == run.size())
      text += run;
    else
      for (size_t i = 0; i < run.size(); ++i) text += "\xEF\xBF\xBD";
    run.clear();
  };
  for (const int32_t token : tokens) {
    const auto id = static_cast<size_t>(token);
    if (!tables.is_byte[id]) finish_run();
    (tables.is_byte[id] ? run : text) += tables.description.tokens[id];
  }
  finish_run();
  if (tables.rules.strips && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::vector<int32_t> ByteFallbackTokenizer::token_bytes() const {
  std::vector<int32_t> bytes;
  for (const std::string& token : tables_->description.tokens) bytes.push_back(static_cast<int32_t>(token.size()));
  for (const AddedToken& token : tables_->description.added)
    if (token.special) bytes[static_cast<size_t>(token.id)] = 0;
  return bytes;
}

std::optional<int32_t> ByteFallbackTokenizer::added_token(std::string_view content) const {
  for (const AddedToken& token : tables_->description.added)
    if (tables_->description.spelled[static_cast<size_t>(token.id)] == content) return token.id;
  return std::nullopt;
}

}  // namespace trireme
