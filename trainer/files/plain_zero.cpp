#include "trainer/files/plain_zero.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace trireme {

std::string plain_zero(std::string text) {
  const auto continues = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_'; };
  for (size_t at = 0; (at = text.find('-', at)) != text.npos; ++at) {
    const size_t end = std::min(text.find_first_not_of("0.", at + 1), text.size());
    const bool is_number = end > at + 1 && text[at + 1] == '0' && text[end - 1] == '0' && (end == at + 2 || text[at + 2] == '.');
    if (!is_number || (at > 0 && continues(text[at - 1])) || (end < text.size() && continues(text[end]))) continue;
    if (std::string_view(text).substr(0, at).ends_with("  "))
      text[at] = ' ';
    else
      text.erase(at, 1);
  }
  return text;
}

}  // namespace trireme
