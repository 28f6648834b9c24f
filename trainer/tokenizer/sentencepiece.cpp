#include "trainer/tokenizer/sentencepiece.h"

#include <algorithm>
#include <array>

#include <sentencepiece_processor.h>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, represents a space in pieces

/// The library's view type: std::string_view, but a class of its own in version 0.1.96.
absl::string_view view(std::string_view text) { return {text.data(), text.size()}; }

/// Reads fields of a protocol buffer (sentencepiece_model.proto), for model settings that the library does not expose.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}
  /// The next field: its number, and its value or its bytes. Returns false at the end and for malformed input.
  bool next(uint64_t& number, uint64_t& value, std::string_view& bytes) {
    uint64_t key = 0;
    if (rest_.empty() || !varint(key)) return false;
    number = key >> 3;
    bytes = {};
    value = 0;
    switch (key & 7) {
      case 0: return varint(value);
      case 1: return take(8, bytes);
      case 2: return varint(value) && take(value, bytes);
      case 5: return take(4, bytes);
      default: return false;
    }
  }

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool take(uint64_t count, std::string_view& bytes) {
    if (count > rest_.size()) return false;
    bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }

  std::string_view rest_;
};

struct Settings {
  uint64_t model_type = 1;  ///< 2: BPE
  bool space_is_suffix = false, dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
  std::string_view rules;  ///< name of the normalisation rules; empty: custom rules
};

Settings read_settings(std::string_view model) {
  Settings settings;
  uint64_t number = 0, value = 0;
  std::string_view section, text;
  for (Fields file(model); file.next(number, value, section);) {
    const uint64_t which = number;  // 2: trainer_spec, 3: normalizer_spec
    if (which != 2 && which != 3) continue;
    for (Fields fields(section); fields.next(number, value, text);) {
      if (which == 2 && number == 3) settings.model_type = value;
      if (which == 2 && number == 24) settings.space_is_suffix = value != 0;
      if (which == 3 && number == 1) settings.rules = text;
      if (which == 3 && number == 3) settings.dummy_prefix = value != 0;
      if (which == 3 && number == 4) settings.remove_extra_spaces = value != 0;
      if (which == 3 && number == 5) settings.escape_spaces = value != 0;
    }
  }
  return settings;
}

/// True if a piece could extend across the boundary before a word.
bool spans_words(std::string_view piece) {
  const size_t word = piece.find_first_not_of(kSpace);  // compares bytes: a character that shares one with U+2581 makes the result conservative
  return piece.find(' ') != std::string_view::npos || (word != std::string_view::npos && piece.find(kSpace, word) != std::string_view::npos);
}

/// True if a document can be cut before a word. Not with a unigram model: it sums the scores of the complete text, in floating point, so every part
/// of the text affects the result.
bool cuts_before_words(const sentencepiece::SentencePieceProcessor& processor, const Settings& settings) {
  constexpr std::array<std::string_view, 5> kKnownRules = {"identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"};  // none maps across a space
  const bool known = std::find(kKnownRules.begin(), kKnownRules.end(), settings.rules) != kKnownRules.end();
  const bool space_survives = settings.dummy_prefix || !settings.remove_extra_spaces;  // a space at the beginning of a part
  if (settings.model_type != 2 || !known || settings.space_is_suffix || !settings.escape_spaces || !space_survives) return false;
  if (processor.IsUnknown(processor.PieceToId(view(kSpace)))) return false;  // adjacent unknown characters form one token
  for (int id = 0; id < processor.GetPieceSize(); ++id)
    if (spans_words(processor.IdToPiece(id))) return false;
  return true;
}

void require(const sentencepiece::util::Status& status, const std::string& what) {
  if (!status.ok()) throw DataError(concat(what, ": ", status.error_message()));
}

/// True if no normalisation removes the character or turns it into a space, and it does not represent a space in pieces.
bool is_boundary_character(const CodePoint& character) {
  constexpr uint32_t kSpaceInPieces = 0x2581, kReplacement = 0xFFFD;  // "nmt_nfkc" turns both into spaces
  return character.bytes > 0 && character.value != kSpaceInPieces && character.value != kReplacement && unchanged_by_nfkc(character.value);
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view model, const std::string& where, const std::vector<AddedToken>& beside,
                                               bool spaces_after_added)
    : spaces_after_added_(spaces_after_added) {
  const auto load = [&](std::string_view serialized) {
    auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
    require(processor->LoadFromSerializedProto(view(serialized)), concat(where, ": not a SentencePiece model"));
    return processor;
  };
  const auto processor = load(model);
  if (processor->GetPieceSize() == 0) throw DataError(concat(where, ": not a SentencePiece model: it has no pieces"));
  const Settings settings = read_settings(model);
  dummy_prefix_ = settings.dummy_prefix;
  cuttable_ = cuts_before_words(*processor, settings);
  processor_ = processor;
  // Appending a serialized message overrides fields of the first: normalizer_spec (3) {add_dummy_prefix (3): false}.
  rest_processor_ = dummy_prefix_ ? load(std::string(model).append({0x1A, 0x02, 0x18, 0x00})) : processor_;

  const int pieces = processor->GetPieceSize();
  for (const AddedToken& token : beside) {
    const auto refuse = [&](const auto&... why) {
      throw DataError(
          concat(where, ": the files beside it name added token ", nlohmann::json(token.content).dump(), " with id ", token.id, ", ", why...));
    };
    if (token.id < pieces && processor->IdToPiece(token.id) != token.content)
      refuse("which in the model is ", nlohmann::json(processor->IdToPiece(token.id)).dump());
    if (token.id < pieces) continue;
    if (const int next = pieces + static_cast<int>(added_.size()); token.id != next) refuse("but the next id behind the others is ", next);
    added_.push_back(token);
    longest_added_ = std::max(longest_added_, token.content.size());
  }
  matches_ = AddedTokens(added_);
}

int64_t SentencePieceTokenizer::vocab_size() const { return processor_->GetPieceSize() + std::ssize(added_); }

void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) const {
  if (text.empty()) return encode_plain(text, tokens, first);
  between_tokens(matches_, text, tokens,
                 [&](std::string_view plain, size_t begin) { encode_plain(plain, tokens, begin > 0 ? spaces_after_added_ : first); });
}

void SentencePieceTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& tokens, bool first) const {
  // cut() leaves the space before a word to the second part, where it takes the place of the one that the library inserts. Any other continuation
  // gets none.
  const bool spaced = !first && dummy_prefix_ && text.starts_with(' ');
  if (spaced) text.remove_prefix(1);
  std::vector<int> ids;
  require((first || spaced ? processor_ : rest_processor_)->Encode(view(text), &ids), "SentencePiece could not encode a text");
  tokens.insert(tokens.end(), ids.begin(), ids.end());
}

size_t SentencePieceTokenizer::cut(std::string_view text) const {
  if (!cuttable_) return 0;
  // An added token that begins after `limit` may be incomplete, or the beginning of a longer one.
  const size_t limit = text.size() - std::min(text.size(), longest_added_ > 0 ? longest_added_ - 1 : 0);
  size_t last = 0;
  for (size_t at = 0; at < limit;) {
    const AddedTokens::Match match = matches_.find(text, at);
    if (const size_t place = cut_plain(text.substr(at, std::min(match.begin, limit) - at)); place > 0) last = at + place;
    at = match.end;
  }
  return last > 0 && matches_.allow_cut(text, last, limit) ? last : 0;
}

size_t SentencePieceTokenizer::cut_plain(std::string_view text) const {
  for (size_t space = text.rfind(' '); space != std::string_view::npos && space > 0; space = text.rfind(' ', space - 1))
    if (is_boundary_character(last_code_point(text.substr(0, space))) && is_boundary_character(first_code_point(text.substr(space + 1))))
      return space;
  return 0;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> tokens) const {
  const int pieces = processor_->GetPieceSize();
  std::string text;
  for (size_t at = 0; at < tokens.size() || at == 0;) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = std::find_if(begin, tokens.end(), [&](int32_t token) { return token >= pieces; });
    std::string part;
    const bool spaced = at == 0 || spaces_after_added_;  // the library removes the space that it inserts
    require((spaced ? processor_ : rest_processor_)->Decode(std::vector<int>(begin, end), &part), "SentencePiece could not decode tokens");
    text += part;
    if (end != tokens.end()) text += added_[static_cast<size_t>(*end - pieces)].content;
    at = static_cast<size_t>(end - tokens.begin()) + 1;
  }
  return text;
}

std::vector<int32_t> SentencePieceTokenizer::token_bytes() const {
  std::vector<int32_t> bytes;
  for (int id = 0; id < processor_->GetPieceSize(); ++id) {
    const std::string& piece = processor_->IdToPiece(id);
    size_t count = piece.size();
    for (size_t at = piece.find(kSpace); at != std::string::npos; at = piece.find(kSpace, at + kSpace.size())) count -= kSpace.size() - 1;
    if (processor_->IsByte(id)) count = 1;
    if (processor_->IsControl(id) || processor_->IsUnknown(id)) count = 0;
    bytes.push_back(static_cast<int32_t>(count));
  }
  for (const AddedToken& token : added_) bytes.push_back(token.special ? 0 : static_cast<int32_t>(token.content.size()));
  return bytes;
}

std::optional<int32_t> SentencePieceTokenizer::end_of_text() const {
  const int id = processor_->eos_id();
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}

std::optional<int32_t> SentencePieceTokenizer::begin_of_text() const {
  const int id = processor_->bos_id();
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}

std::optional<int32_t> SentencePieceTokenizer::added_token(std::string_view content) const {
  for (const AddedToken& token : added_)
    if (token.content == content) return token.id;
  const int id = processor_->PieceToId(view(content));
  return processor_->IsControl(id) && processor_->IdToPiece(id) == content ? std::optional<int32_t>(id) : std::nullopt;
}

}  // namespace trireme
