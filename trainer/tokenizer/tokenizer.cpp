#include "trainer/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/mapped_file.h"
#include "trainer/tokenizer/foreign.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 28;  // the largest vocabularies in use take 30 MB

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// The tokenizer's file in a directory.
std::string file_in(const fs::path& directory) {
  std::error_code unreadable;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(directory / name, unreadable)) return (directory / name).string();
  const std::string other = foreign_tokenizer_in(directory);
  throw MissingFileError(
      concat(directory.string(), ": contains neither tokenizer.json nor tokenizer.model", other.empty() ? "" : concat(", but ", other)));
}

[[noreturn]] void refuse_spec(const std::string& spec) {
  std::error_code unreadable;
  if (fs::is_regular_file(spec, unreadable) && fs::file_size(spec, unreadable) <= static_cast<uintmax_t>(kMaxBytes))
    if (const std::string other = foreign_tokenizer(fs::path(spec).filename().string(), read_text(spec, kMaxBytes)); !other.empty())
      throw DataError(concat(spec, ": is ", other));
  throw ConfigError(
      concat("tokenizer=", spec, ": unknown tokenizer; allowed: bytes, a SentencePiece model (*.model), a tokenizer.json, a directory with either"));
}

const char* name_of(PieceModel::Kind kind) {
  switch (kind) {
    case PieceModel::Kind::kWordPiece: return "wordpiece";
    case PieceModel::Kind::kUnigram: return "unigram";
    case PieceModel::Kind::kWordLevel: return "wordlevel";
    case PieceModel::Kind::kBytePairs: return "bpe";
  }
  return "";
}

/// What identifies added tokens that the tokenizer's own file lacks.
std::string added_text(std::span<const AddedToken> tokens) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const AddedToken& token : tokens)
    list.push_back({token.id, token.content, token.special, token.normalized, token.lstrip, token.rstrip, token.single_word});
  return list.empty() ? "" : list.dump();
}

}  // namespace

/// Ends and begins of text. `own_end`, `own_begin`: those of the tokenizer's own file.
template <class Any>
void Tokenizer::find_ends(const Any& tokenizer, const TokenizerCompanions& beside, std::optional<int32_t> own_end, std::optional<int32_t> own_begin) {
  if (beside.end) {
    end_ = tokenizer.added_token(*beside.end);
    if (!end_) throw DataError(concat(file_, ": no added token ", *beside.end, ", which ", beside.end_file, " names as eos_token"));
  }
  if (beside.begin) begin_ = tokenizer.added_token(*beside.begin);
  const auto is_token = [&](int64_t id) { return id < vocab_size_; };  // a model may have more rows than the tokenizer has ids
  const auto is_added = [&](int64_t id) {
    const auto token = static_cast<int32_t>(id);
    return is_token(id) && tokenizer.added_token(decode({&token, 1})) == token;
  };
  for (const int64_t id : beside.end_ids)
    if (!end_ && is_added(id)) end_ = static_cast<int32_t>(id);
  for (const int64_t id : beside.begin_ids)
    if (!begin_ && is_added(id)) begin_ = static_cast<int32_t>(id);
  if (!end_) end_ = own_end;
  if (!begin_) begin_ = own_begin;
  if (end_) ends_.push_back(*end_);
  for (const int64_t id : beside.end_ids)
    if (is_token(id) && std::ranges::find(ends_, id) == ends_.end()) ends_.push_back(static_cast<int32_t>(id));
}

Tokenizer Tokenizer::open(const std::string& spec) {
  Tokenizer made;
  if (spec == "bytes") return made;
  std::error_code unreadable;
  made.file_ = fs::is_directory(spec, unreadable) ? file_in(spec) : spec;
  const bool sentencepiece = made.file_.ends_with(".model");
  if (!sentencepiece && !made.file_.ends_with(".json")) refuse_spec(spec);
  const std::string text = read_text(made.file_, kMaxBytes);
  const auto refuse_foreign = [&] {
    const std::string other = foreign_tokenizer(fs::path(made.file_).filename().string(), text);
    if (!other.empty()) throw DataError(concat(made.file_, ": is ", other));
  };
  const TokenizerCompanions beside = read_companions(fs::path(made.file_).parent_path());
  made.sampling_ = beside.sampling;
  const auto take = [&](auto tokenizer, std::span<const AddedToken> added, std::optional<int32_t> end, std::optional<int32_t> begin) {
    made.digest_ = digest_of(text + added_text(added));
    made.vocab_size_ = tokenizer.vocab_size();
    made.kind_ = tokenizer;
    made.find_ends(tokenizer, beside, end, begin);
  };
  if (sentencepiece) {
    made.name_ = "sentencepiece";
    refuse_foreign();
    SentencePieceTokenizer tokenizer(text, made.file_, beside.added, beside.spaces_after_added);
    take(tokenizer, tokenizer.added(), tokenizer.end_of_text(), tokenizer.begin_of_text());
    return made;
  }
  TokenizerJson description;
  try {
    description = parse_tokenizer_json(text, made.file_, beside.added);
  } catch (const DataError&) {
    refuse_foreign();
    throw;
  }
  made.name_ = description.pieces ? name_of(description.pieces->kind) : "bpe";
  const std::vector<AddedToken> added(description.added.begin() + static_cast<std::ptrdiff_t>(description.own_added), description.added.end());
  const auto take_json = [&](auto tokenizer) {
    std::optional<int32_t> end;
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>"})
      if (!end) end = tokenizer.added_token(name);
    take(std::move(tokenizer), added, end, std::nullopt);
  };
  if (description.fallback)
    take_json(ByteFallbackTokenizer(std::move(description), made.file_));
  else if (description.pieces)
    take_json(PieceTokenizer(std::move(description), made.file_));
  else
    take_json(BytePairTokenizer(std::move(description), made.file_));
  return made;
}

std::map<std::string, std::string> Tokenizer::copies() const {
  std::map<std::string, std::string> texts;
  if (file_.empty()) return texts;
  const fs::path file = file_, folder = file.parent_path();
  texts["tokenizer" + file.extension().string()] = read_text(file);
  texts.merge(companion_copies(folder));
  return texts;
}

std::string Tokenizer::where_no_end() const {
  if (file_.empty()) return "tokenizer bytes has no end-of-text token";
  return concat(
      file_, ": no eos_token is named (tokenizer_config.json, special_tokens_map.json), nor an eos_token_id (generation_config.json, config.json)");
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) {
  std::visit(Overloaded{[&](ByteTokenizer&) {
                          for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
                        },
                        [&](auto& tokenizer) { tokenizer.encode(text, tokens, first); }},
             kind_);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<int32_t> tokens;
  encode(text, tokens);
  return tokens;
}

size_t Tokenizer::cut(std::string_view text, bool first) const {
  return std::visit(
      Overloaded{[&](const ByteTokenizer&) { return text.size(); }, [&](const SentencePieceTokenizer& tokenizer) { return tokenizer.cut(text); },
                 [&](const ByteFallbackTokenizer& tokenizer) { return tokenizer.cut(text); }, [](const PieceTokenizer&) { return size_t{0}; },
                 [&](const BytePairTokenizer& tokenizer) { return tokenizer.cut(text, first); }},
      kind_);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size_) throw DataError(concat("token ", token, " is outside the tokenizer's vocabulary of ", vocab_size_));
  return std::visit(Overloaded{[&](const ByteTokenizer&) {
                                 std::string text;
                                 for (const int32_t token : tokens) text.push_back(static_cast<char>(token));
                                 return text;
                               },
                               [&](const auto& tokenizer) { return tokenizer.decode(tokens); }},
                    kind_);
}

std::vector<int32_t> Tokenizer::token_bytes() const {
  return std::visit(
      Overloaded{[](const ByteTokenizer&) { return std::vector<int32_t>(256, 1); }, [](const auto& tokenizer) { return tokenizer.token_bytes(); }},
      kind_);
}

bool same_ids(const Tokenizer& a, const Tokenizer& b) {
  if (a.digest() == b.digest()) return true;
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < a.vocab_size(); ++id)
    if (a.decode({&id, 1}) != b.decode({&id, 1})) return false;
  return true;
}

}  // namespace trireme
