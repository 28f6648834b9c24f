#include "trainer/tokenizer/piece_tokenizer.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/tokenizer_json.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

/// Bytes of the first character, or 1 for a byte that is not UTF-8.
size_t first_bytes(std::string_view text) { return std::max<size_t>(first_code_point(text).bytes, 1); }

int64_t characters_of(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(first_bytes(text));
  return count;
}

}  // namespace

struct PieceTokenizer::Tables {
  TokenizerJson description;
  PieceModel model;
  MergeTable merges;
  AddedTokens raw, normalized;
  std::unordered_map<std::string_view, int32_t> ids;  ///< of the model's vocabulary
  size_t longest = 0;                                 ///< bytes of a token
  double unknown_score = 0;
  std::string where;

  Tables(TokenizerJson read, const std::string& file)
      : description(std::move(read)), model(description.pieces.value()), merges(description.merges, file), where(file) {
    for (size_t id = 0; id < description.spelled.size(); ++id) {
      if (!description.mergeable[id]) continue;
      ids.emplace(description.spelled[id], static_cast<int32_t>(id));
      longest = std::max(longest, description.spelled[id].size());
    }
    std::vector<AddedToken> before, after;
    for (const AddedToken& token : description.added) (token.normalized ? after : before).push_back(token);
    raw = AddedTokens(std::move(before));
    normalized = AddedTokens(std::move(after));
    constexpr double kPenalty = 10;  // that of SentencePiece
    if (!model.scores.empty()) unknown_score = *std::min_element(model.scores.begin(), model.scores.end()) - kPenalty;
  }

  /// -1 if there is none.
  int32_t find(std::string_view token) const {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  }
  int32_t unknown(std::string_view piece) const {
    if (model.unknown >= 0) return model.unknown;
    throw DataError(concat(where, ": has neither a token for ", nlohmann::json(piece).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                           " nor an unk_token"));
  }
};

PieceTokenizer::PieceTokenizer(TokenizerJson description, const std::string& where)
    : tables_(std::make_shared<const Tables>(std::move(description), where)), pretokenizer_(tables_->description.rules, where) {}

int64_t PieceTokenizer::vocab_size() const { return static_cast<int64_t>(tables_->description.tokens.size()); }

void PieceTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) {
  const Tables& tables = *tables_;
  std::string room;
  between_tokens(tables.raw, text, tokens, [&](std::string_view plain, size_t begin) {
    const std::string_view normalized = tables.description.normalizer.apply(plain, room);
    between_tokens(tables.normalized, normalized, tokens,
                   [&](std::string_view stretch, size_t inner_begin) { encode_stretch(stretch, first && begin == 0 && inner_begin == 0, tokens); });
  });
}

void PieceTokenizer::encode_stretch(std::string_view text, bool begins, std::vector<int32_t>& tokens) {
  const PieceModel& model = tables_->model;
  pretokenizer_.pieces(text, true, [&](std::string_view piece) {
    if (model.byte_level) return encode_piece(to_byte_level(piece), tokens);
    if (!model.metaspace) return encode_piece(piece, tokens);
    using enum ByteFallbackRules::Prefix;
    const bool prefixed = model.metaspace->prefix == kAlways || (model.metaspace->prefix == kFirst && begins && piece.data() == text.data());
    const std::string marked = with_marks(piece, prefixed && !piece.starts_with(' ') && !piece.starts_with(kSpaceMark));
    for (std::string_view rest = marked; !rest.empty();) {
      const size_t end = model.metaspace->splits ? std::min(rest.find(kSpaceMark, 1), rest.size()) : rest.size();
      encode_piece(rest.substr(0, end), tokens);
      rest.remove_prefix(end);
    }
  });
}

void PieceTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& tokens) {
  switch (tables_->model.kind) {
    case PieceModel::Kind::kWordPiece: return encode_word_piece(piece, tokens);
    case PieceModel::Kind::kUnigram: return encode_unigram(piece, tokens);
    case PieceModel::Kind::kBytePairs: return encode_byte_pairs(piece, tokens);
    case PieceModel::Kind::kWordLevel: {
      const int32_t id = tables_->find(piece);
      return tokens.push_back(id >= 0 ? id : tables_->unknown(piece));
    }
  }
}

/// From left to right the longest token; the unknown token for the whole piece if that does not succeed.
void PieceTokenizer::encode_word_piece(std::string_view piece, std::vector<int32_t>& tokens) {
  const Tables& tables = *tables_;
  if (characters_of(piece) > tables.model.most_characters) return tokens.push_back(tables.unknown(piece));
  ids_.clear();
  std::string token;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view prefix = at > 0 ? std::string_view(tables.model.prefix) : std::string_view();
    size_t end = std::min(piece.size(), at + tables.longest);
    int32_t id = -1;
    for (; end > at; --end) {
      token.assign(prefix).append(piece.substr(at, end - at));
      if ((id = tables.find(token)) >= 0) break;
    }
    if (id < 0) return tokens.push_back(tables.unknown(piece));
    ids_.push_back(id);
    at = end;
  }
  tokens.insert(tokens.end(), ids_.begin(), ids_.end());
}

/// The segmentation with the largest sum of scores. Of equal sums, the one with the longest last token.
void PieceTokenizer::encode_unigram(std::string_view piece, std::vector<int32_t>& tokens) {
  const Tables& tables = *tables_;
  struct Place {
    double score = 0;
    size_t begin = std::numeric_limits<size_t>::max();  ///< of the last token on the best way here
    int32_t id = -1;
  };
  std::vector<Place> places(piece.size() + 1);
  const auto consider = [&](size_t begin, size_t end, double score, int32_t id) {
    Place& place = places[end];
    const double sum = places[begin].score + score;
    if (place.begin > piece.size() || sum > place.score) place = {sum, begin, id};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t one = first_bytes(piece.substr(at));
    bool single = false;
    for (size_t end = at + 1; end <= std::min(piece.size(), at + tables.longest); ++end) {
      const int32_t id = tables.find(piece.substr(at, end - at));
      if (id < 0) continue;
      consider(at, end, tables.model.scores[static_cast<size_t>(id)], id);
      single = single || end == at + one;
    }
    if (!single) consider(at, at + one, tables.unknown_score, -1);
    at += one;
  }
  const size_t begin_of_ids = tokens.size();  // from here on in reverse order
  for (size_t end = piece.size(); end > 0;) {
    if (places[end].id >= 0) {
      tokens.push_back(places[end].id);
      end = places[end].begin;
      continue;
    }
    const size_t stop = end;  // unknown characters that follow each other are one
    while (end > 0 && places[end].id < 0) end = places[end].begin;
    const std::string_view unknown = piece.substr(end, stop - end);
    const bool bytes = tables.model.byte_fallback && std::all_of(unknown.begin(), unknown.end(), [&](char byte) {
                         return tables.description.byte_ids[static_cast<unsigned char>(byte)] >= 0;
                       });
    if (!bytes) tokens.push_back(tables.unknown(unknown));
    for (size_t i = unknown.size(); bytes && i > 0; --i) tokens.push_back(tables.description.byte_id(unknown[i - 1]));
  }
  std::reverse(tokens.begin() + static_cast<std::ptrdiff_t>(begin_of_ids), tokens.end());
}

void PieceTokenizer::encode_byte_pairs(std::string_view piece, std::vector<int32_t>& tokens) {
  const Tables& tables = *tables_;
  const PieceModel& model = tables.model;
  if (const int32_t whole = tables.description.ignore_merges ? tables.find(piece) : -1; whole >= 0) return tokens.push_back(whole);
  ids_.clear();
  bool unknown = false;  // the last id is
  std::string token;
  for (size_t at = 0; at < piece.size();) {
    const size_t bytes = first_bytes(piece.substr(at));
    token.assign(at > 0 ? model.prefix : "").append(piece.substr(at, bytes)).append(at + bytes == piece.size() ? model.suffix : "");
    const int32_t id = tables.find(token);
    if (id >= 0)
      ids_.push_back(id);
    else if (model.unknown >= 0 && !(unknown && model.fuses_unknown))
      ids_.push_back(model.unknown);
    unknown = id < 0 && model.unknown >= 0;
    at += bytes;
  }
  merge_all(tables.merges, ids_, merges_);
  tokens.insert(tokens.end(), ids_.begin(), ids_.end());
}

std::string PieceTokenizer::decode(std::span<const int32_t> tokens) const {
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(tables_->description.spelled[static_cast<size_t>(token)]);
  return tables_->description.decoder.apply(std::move(texts));
}

std::vector<int32_t> PieceTokenizer::token_bytes() const {
  std::vector<int32_t> bytes;
  const int32_t before = 0;
  const size_t known = decode({&before, 1}).size();
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::array<int32_t, 2> both = {before, id};
    bytes.push_back(static_cast<int32_t>(std::max(decode(both).size(), known) - known));
  }
  for (const AddedToken& token : tables_->description.added)
    if (token.special) bytes[static_cast<size_t>(token.id)] = 0;
  return bytes;
}

std::optional<int32_t> PieceTokenizer::added_token(std::string_view content) const {
  for (const AddedToken& token : tables_->description.added)
    if (tables_->description.spelled[static_cast<size_t>(token.id)] == content) return token.id;
  return std::nullopt;
}

}  // namespace trireme
