#include "trainer/tokenizer/precompiled.h"

#include <algorithm>
#include <cstring>

#include <utf8proc.h>

#include "kernels/core/check.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

std::string from_base64(std::string_view text, const std::string& where) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, std::min(text.find('='), text.size()))) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) throw DataError(concat(where, ": is not base64"));
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

/// Bytes of the first extended grapheme cluster of valid UTF-8.
size_t grapheme_bytes(std::string_view text) {
  CodePoint before = first_code_point(text);
  size_t bytes = before.bytes;
  utf8proc_int32_t state = 0;
  while (bytes < text.size()) {
    const CodePoint next = first_code_point(text.substr(bytes));
    if (next.bytes == 0 ||
        utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before.value), static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    bytes += next.bytes;
    before = next;
  }
  return bytes;
}

}  // namespace

PrecompiledNormalization::PrecompiledNormalization(const std::string& charsmap, const std::string& where) {
  const std::string bytes = from_base64(charsmap, where);
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % sizeof(uint32_t) != 0 || bytes.size() < sizeof size + size) throw DataError(concat(where, ": is damaged"));
  trie_.resize(size / sizeof(uint32_t));
  std::memcpy(trie_.data(), bytes.data() + sizeof size, size);
  replacements_ = bytes.substr(sizeof size + size) + '\0';
}

bool PrecompiledNormalization::replace(std::string_view chunk, std::string& made) const {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); };
  size_t place = offset(trie_.front());
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    place ^= byte;
    if (byte == 0 || place >= trie_.size() || (trie_[place] & 0x800000FFU) != byte) return false;
    const uint32_t unit = trie_[place];
    place ^= offset(unit);
    if (place >= trie_.size()) return false;
    if ((unit >> 8 & 1) == 0) continue;  // no sequence ends here
    const size_t begin = trie_[place] & 0x7FFFFFFFU;
    if (begin >= replacements_.size()) return false;
    made.append(replacements_, begin, replacements_.find('\0', begin) - begin);
    return true;
  }
  return false;
}

std::string PrecompiledNormalization::apply(std::string_view text) const {
  constexpr size_t kShort = 6;
  std::string made;
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, std::max<size_t>(grapheme_bytes(text), 1));
    text.remove_prefix(cluster.size());
    if (cluster.size() < kShort && replace(cluster, made)) continue;
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, std::max<size_t>(first_code_point(cluster).bytes, 1));
      if (!replace(character, made)) made.append(character);
      cluster.remove_prefix(character.size());
    }
  }
  return made;
}

}  // namespace trireme
