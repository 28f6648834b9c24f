#include "trainer/tokenizer/added_tokens.h"

#include <algorithm>

namespace trireme {
namespace {

size_t byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

AddedTokens::AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end());  // byte order: std::string compares bytes as unsigned
  for (const auto& [content, id] : tokens_) ++first_[byte_at(content, 0) + 1];
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t at) const {
  if (tokens_.empty()) return {text.size(), text.size(), 0};
  for (size_t begin = at; begin < text.size(); ++begin) {
    auto low = tokens_.begin() + first_[byte_at(text, begin)];
    auto high = tokens_.begin() + first_[byte_at(text, begin) + 1];
    Match longest{begin, begin, 0};
    // [low, high) are the tokens whose first `length` bytes match the text; a token of exactly that length comes first.
    for (size_t length = 1; low != high; ++length) {
      if (low->first.size() == length) {
        longest = {begin, begin + length, low->second};
        ++low;
      }
      if (begin + length == text.size()) break;
      const size_t next = byte_at(text, begin + length);
      low = std::partition_point(low, high, [&](const auto& token) { return byte_at(token.first, length) < next; });
      high = std::partition_point(low, high, [&](const auto& token) { return byte_at(token.first, length) <= next; });
    }
    if (longest.end > begin) return longest;
  }
  return {text.size(), text.size(), 0};
}

}  // namespace trireme
