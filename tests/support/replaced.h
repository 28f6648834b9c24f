#pragma once
#include <string>

namespace trireme::test {

/// `text` with `to` in place of every `from`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

}  // namespace trireme::test
