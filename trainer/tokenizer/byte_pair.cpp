#include "trainer/tokenizer/byte_pair.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/merge_table.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {
namespace {

/// A piece and its ids, in one cache line. Longer pieces are rare or do not recur.
struct alignas(64) CachedPiece {
  uint8_t bytes = 0, count = 0;
  std::array<char, 26> text{};
  std::array<int32_t, 9> ids{};
};
static_assert(sizeof(CachedPiece) == 64);
constexpr size_t kCachedPieces = size_t{1} << 15;  // 2 MiB: fits a core's L2 cache

/// The stretch of text between added tokens that contains byte `limit`; if that byte lies in an added token, the empty stretch at the token's begin.
struct Stretch {
  size_t begin, end;
};
Stretch stretch_at(const AddedTokens& tokens, std::string_view text, size_t limit) {
  for (size_t begin = 0;;) {
    const AddedTokens::Match match = tokens.find(text, begin);
    if (match.begin == match.end || match.begin >= limit) return {begin, match.begin};
    if (match.end > limit) return {match.begin, match.begin};
    begin = match.end;
  }
}

}  // namespace

struct BytePairTokenizer::Tables {
  TokenizerJson description;
  MergeTable merges;
  AddedTokens raw, normalized;  ///< matched before and after normalisation
  size_t longest_added = 0;     ///< bytes
  bool added_over_lines = false;
  std::unordered_map<std::string_view, int32_t> whole;  ///< tokens by their bytes, if ignore_merges

  Tables(TokenizerJson read, const std::string& where) : description(std::move(read)), merges(description.merges, where) {
    std::vector<AddedToken> before, after;
    for (const AddedToken& token : description.added) {
      longest_added = std::max(longest_added, token.content.size());
      added_over_lines = added_over_lines || token.content.find('\n') != std::string::npos;
      (token.normalized ? after : before).push_back(token);
    }
    raw = AddedTokens(std::move(before));
    normalized = AddedTokens(std::move(after));
    if (!description.ignore_merges) return;
    for (size_t id = 0; id < description.tokens.size(); ++id)
      if (description.mergeable[id]) whole.emplace(description.tokens[id], static_cast<int32_t>(id));
  }
};

struct BytePairTokenizer::Scratch {
  std::vector<CachedPiece> cache = std::vector<CachedPiece>(kCachedPieces);
  std::string normalized;
  std::vector<int32_t> ids;
  MergeBuffers merges;
};

BytePairTokenizer::BytePairTokenizer(TokenizerJson description, const std::string& where)
    : tables_(std::make_shared<const Tables>(std::move(description), where)),
      pretokenizer_(tables_->description.rules, where),
      scratch_(std::make_unique<Scratch>()) {}
BytePairTokenizer::BytePairTokenizer(const BytePairTokenizer& other)
    : tables_(other.tables_), pretokenizer_(other.pretokenizer_), scratch_(std::make_unique<Scratch>()) {}
BytePairTokenizer& BytePairTokenizer::operator=(const BytePairTokenizer& other) { return *this = BytePairTokenizer(other); }
BytePairTokenizer::BytePairTokenizer(BytePairTokenizer&&) noexcept = default;
BytePairTokenizer& BytePairTokenizer::operator=(BytePairTokenizer&&) noexcept = default;
BytePairTokenizer::~BytePairTokenizer() = default;

int64_t BytePairTokenizer::vocab_size() const { return static_cast<int64_t>(tables_->description.tokens.size()); }

void BytePairTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) {
  between_tokens(tables_->raw, text, tokens, [&](std::string_view plain, size_t begin) {
    plain = tables_->description.normalizer.apply(plain, scratch_->normalized);
    between_tokens(tables_->normalized, plain, tokens, [&](std::string_view stretch, size_t inner_begin) {
      const bool begins = first || begin > 0 || inner_begin > 0;
      pretokenizer_.pieces(stretch, begins, [&](std::string_view piece) { encode_piece(piece, tokens); });
    });
  });
}

void BytePairTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& tokens) {
  const Tables& tables = *tables_;
  if (piece.size() == 1) return tokens.push_back(tables.description.byte_id(piece.front()));
  CachedPiece* cached = nullptr;
  if (piece.size() <= std::tuple_size_v<decltype(CachedPiece::text)>) {
    cached = &scratch_->cache[XXH3_64bits(piece.data(), piece.size()) & (kCachedPieces - 1)];
    if (cached->bytes == piece.size() && std::memcmp(cached->text.data(), piece.data(), piece.size()) == 0) {
      tokens.insert(tokens.end(), cached->ids.begin(), cached->ids.begin() + cached->count);
      return;
    }
  }

  std::vector<int32_t>& ids = scratch_->ids;
  ids.clear();
  const auto whole = tables.whole.find(piece);
  if (whole != tables.whole.end()) {
    ids.push_back(whole->second);
  } else {
    for (const char byte : piece) ids.push_back(tables.description.byte_id(byte));
    merge_all(tables.merges, ids, scratch_->merges);
  }
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  if (!cached || ids.size() > cached->ids.size()) return;
  cached->bytes = static_cast<uint8_t>(piece.size());
  cached->count = static_cast<uint8_t>(ids.size());
  std::copy(piece.begin(), piece.end(), cached->text.begin());
  std::copy(ids.begin(), ids.end(), cached->ids.begin());
}

size_t BytePairTokenizer::cut(std::string_view text, bool first) const {
  const Tables& tables = *tables_;
  const bool nfc = !tables.description.normalizer.empty();
  if (!tables.description.normalizer.at_most_nfc() || (nfc && tables.normalized.reaches())) return 0;
  const size_t place = cut_between_tokens(text, first);
  const size_t limit = text.size() - std::min(text.size(), tables.longest_added);
  return place > 0 && tables.raw.allow_cut(text, place, limit) && tables.normalized.allow_cut(text, place, limit) ? place : 0;
}

size_t BytePairTokenizer::cut_between_tokens(std::string_view text, bool first) const {
  const Tables& tables = *tables_;
  const bool nfc = !tables.description.normalizer.empty();
  // The leading space of the text after an added token may merge with a line feed there.
  const bool prefixed_token = pretokenizer_.prefixes_text() && tables.longest_added > 0;
  const size_t line = tables.added_over_lines || prefixed_token ? 0 : pretokenizer_.last_line(text);
  if (line > 0) return line;

  // An added token that begins after `limit` may be incomplete, or the beginning of a longer one.
  const size_t unsure = tables.longest_added > 0 ? tables.longest_added - 1 : 0;
  const size_t limit = text.size() - std::min(text.size(), unsure);
  const Stretch outer = stretch_at(tables.raw, text, limit);
  std::string_view plain = text.substr(outer.begin, outer.end - outer.begin);
  std::string room;
  // After a cut directly behind an added token, the rest would not get its leading space. Another added token gets none, so that cut is allowed.
  const bool cut_behind_token = !pretokenizer_.prefixes_text() || (plain.empty() && outer.end < text.size());
  // Places in the normalised text do not map to places in the original text.
  if (nfc && to_nfc(plain, room) != plain) return cut_behind_token ? outer.begin : 0;
  const Stretch inner = stretch_at(tables.normalized, plain, limit - outer.begin);
  // The text after the limit may begin an added token, which would end the plain text there.
  plain = plain.substr(inner.begin, std::min(inner.end, limit - outer.begin) - inner.begin);
  const size_t begin = outer.begin + inner.begin;
  const size_t place = pretokenizer_.last_boundary(plain, first || begin > 0, nfc);
  return place > 0 || cut_behind_token ? begin + place : 0;
}

std::string BytePairTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += tables_->description.tokens[static_cast<size_t>(token)];
  return text;
}

std::vector<int32_t> BytePairTokenizer::token_bytes() const {
  std::vector<int32_t> bytes;
  for (const std::string& token : tables_->description.tokens) bytes.push_back(static_cast<int32_t>(token.size()));
  for (const AddedToken& token : tables_->description.added)
    if (token.special) bytes[static_cast<size_t>(token.id)] = 0;
  return bytes;
}

std::optional<int32_t> BytePairTokenizer::added_token(std::string_view content) const {
  for (const AddedToken& token : tables_->description.added)
    if (token.content == content) return token.id;
  return std::nullopt;
}

}  // namespace trireme
