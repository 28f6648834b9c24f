#include "trainer/commands/text_stream.h"

#include <algorithm>

#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

constexpr size_t kContext = 8;

/// Number of bytes that no later token changes. If tokens are bytes, a decoder may show an incomplete character as replacement characters.
size_t settled(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  size_t end = text.size() - unfinished_utf8(text);
  while (text.substr(0, end).ends_with(kReplacement)) end -= kReplacement.size();
  return end;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before) : tokenizer_(tokenizer) {
  const std::span<const int32_t> last = before.last(std::min(before.size(), kContext));
  tokens_.assign(last.begin(), last.end());
  context_ = tokens_.size();
  told_ = tokenizer.decode(tokens_).size();
}

std::string TextStream::take(size_t end, const std::string& text) {
  const std::string fresh = end > told_ ? text.substr(told_, end - told_) : "";
  told_ = std::max(told_, end);
  return fresh;
}

std::string TextStream::add(int32_t token) {
  tokens_.push_back(token);
  const std::string text = tokenizer_.decode(tokens_);
  const std::string fresh = take(settled(text), text);
  if (told_ < text.size()) return fresh;
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(context_));
  context_ = tokens_.size();
  told_ = tokenizer_.decode(tokens_).size();
  return fresh;
}

std::string TextStream::rest() {
  const std::string text = tokenizer_.decode(tokens_);
  return take(text.size(), text);
}

}  // namespace trireme
