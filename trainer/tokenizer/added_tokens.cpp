#include "trainer/tokenizer/added_tokens.h"

#include <algorithm>

#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

size_t byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

size_t white_space_at_end(std::string_view text) {
  size_t end = text.size();
  for (CodePoint last = last_code_point(text); last.bytes > 0 && is_white_space(last.value); last = last_code_point(text.substr(0, end)))
    end -= last.bytes;
  return text.size() - end;
}

size_t white_space_at_begin(std::string_view text) {
  size_t at = 0;
  for (CodePoint next = first_code_point(text); next.bytes > 0 && is_white_space(next.value); next = first_code_point(text.substr(at)))
    at += next.bytes;
  return at;
}

bool is_word(const CodePoint& character) { return character.bytes > 0 && is_word_character(character.value); }

bool has_text(std::string_view text) { return white_space_at_begin(text) < text.size(); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });  // compares bytes as unsigned
  for (const AddedToken& token : tokens_) ++first_[byte_at(token.content, 0) + 1];
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
  reaches_ = std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& token) { return token.reaches(); });
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t at) const {
  if (tokens_.empty()) return {text.size(), text.size(), 0, nullptr};
  for (size_t begin = at; begin < text.size(); ++begin) {
    auto low = tokens_.begin() + first_[byte_at(text, begin)];
    auto high = tokens_.begin() + first_[byte_at(text, begin) + 1];
    Match longest{begin, begin, 0, nullptr};
    // [low, high) are the tokens whose first `length` bytes match the text; a token of exactly that length comes first.
    for (size_t length = 1; low != high; ++length) {
      if (low->content.size() == length) {
        longest = {begin, begin + length, low->id, &*low};
        ++low;
      }
      if (begin + length == text.size()) break;
      const size_t next = byte_at(text, begin + length);
      low = std::partition_point(low, high, [&](const AddedToken& token) { return byte_at(token.content, length) < next; });
      high = std::partition_point(low, high, [&](const AddedToken& token) { return byte_at(token.content, length) <= next; });
    }
    if (longest.end > begin) return longest;
  }
  return {text.size(), text.size(), 0, nullptr};
}

AddedTokens::Span AddedTokens::span(const Match& match, std::string_view text) {
  const std::string_view before = text.substr(0, match.begin), after = text.substr(match.end);
  if (match.token->single_word && (is_word(last_code_point(before)) || is_word(first_code_point(after)))) return {0, 0};
  Span span{match.begin, match.end};
  if (match.token->lstrip) span.begin -= white_space_at_end(before);
  if (match.token->rstrip) span.end += white_space_at_begin(after);
  return span;
}

bool AddedTokens::allow_cut(std::string_view text, size_t cut, size_t limit) const {
  if (!reaches_) return true;
  size_t last = 0;
  for (Match match = find(text, 0); match.end > match.begin; match = find(text, match.end)) {
    if (match.begin >= cut) {
      limit = std::min(limit, match.begin);
      break;
    }
    last = match.end;
  }
  // No match reaches over text, so each side of the cut needs some before the next token.
  return cut > last && cut < limit && has_text(text.substr(last, cut - last)) && has_text(text.substr(cut, limit - cut));
}

}  // namespace trireme
