#include "trainer/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <utf8proc.h>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080u;

/// Length of a prefix of `text` that NFC does not change, whatever follows it.
size_t unchanged_by_nfc(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && !nfc_byte(text[i])) ++i;
  if (i == text.size()) return i;
  // Excludes the character before the first one that could change: the two may combine.
  while (i > 0 && (static_cast<unsigned char>(text[--i]) & 0xC0) == 0x80) {
  }
  return i;
}

constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

/// Appends the normal form of `text`, which is valid UTF-8. `units` is a buffer.
void append_form(std::string_view text, utf8proc_option_t options, std::vector<utf8proc_int32_t>& units, std::string& out) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = static_cast<utf8proc_ssize_t>(text.size());
  if (units.size() < text.size() + 1) units.resize(text.size() + 1);
  utf8proc_ssize_t count = utf8proc_decompose(bytes, length, units.data(), static_cast<utf8proc_ssize_t>(units.size() - 1), options);
  if (count > static_cast<utf8proc_ssize_t>(units.size() - 1)) {
    units.resize(static_cast<size_t>(count) + 1);
    count = utf8proc_decompose(bytes, length, units.data(), count, options);
  }
  if (count >= 0) count = utf8proc_reencode(units.data(), count, options);
  TRIREME_CHECK(count >= 0, utf8proc_errmsg(count));
  out.append(reinterpret_cast<const char*>(units.data()), static_cast<size_t>(count));
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  if (text.empty()) return {0, 0};
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {0, 0};
  uint32_t value = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0, 0};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  if (overlong || (value >= 0xD800 && value < 0xE000) || value > 0x10FFFF) return {0, 0};
  return {value, bytes};
}

CodePoint last_code_point(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(4, text.size()); ++bytes) {
    const CodePoint last = first_code_point(text.substr(text.size() - bytes));
    if (last.bytes == bytes) return last;
  }
  return {0, 0};
}

size_t valid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight = kHighBits;
    if (i + 8 <= text.size()) std::memcpy(&eight, text.data() + i, 8);
    if ((eight & kHighBits) == 0) {
      i += 8;
      continue;
    }
    const size_t bytes = first_code_point(text.substr(i)).bytes;
    if (bytes == 0) break;
    i += bytes;
  }
  return i;
}

size_t unfinished_utf8(std::string_view text) {
  // A character is incomplete, not invalid, if some continuation bytes make it valid; the smallest and the largest suffice to decide.
  for (size_t length = 1; length <= 3 && length <= text.size(); ++length) {
    const std::string_view tail = text.substr(text.size() - length);
    const auto lead = static_cast<unsigned char>(tail.front());
    if ((lead & 0xC0) == 0x80) continue;
    const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (length >= bytes) return 0;
    for (const char more : {'\x80', '\xBF'})
      if (first_code_point(std::string(tail).append(bytes - length, more)).bytes == bytes) return length;
    return 0;
  }
  return 0;
}

std::string to_utf8(uint32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  return std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

bool is_white_space(uint32_t c) {
  return c == 0x20 || (c >= 0x09 && c <= 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(uint32_t c) {
  const std::string_view category = general_category(c);
  const bool circled =
      (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return category.front() == 'L' || category.front() == 'M' || category == "Nd" || category == "Nl" || category == "Pc" || c == 0x200C ||
         c == 0x200D || circled;  // the symbols that are Alphabetic
}

bool is_nfc_boundary(std::string_view text) {
  if (text.empty()) return false;
  if (!nfc_byte(text.front())) return true;
  const CodePoint first = first_code_point(text);
  if (first.bytes == 0) return false;
  // Apart from marks, only vowels and final consonants of Hangul and vowels of Kirat Rai combine with the preceding character.
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(first.value));
  const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
  const bool hangul = first.value >= 0x1160 && first.value <= 0x11FF;
  const bool kirat_rai = first.value >= 0x16D40 && first.value <= 0x16D7F;
  return !mark && !hangul && !kirat_rai;
}

bool unchanged_by_nfkc(uint32_t code_point) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  const std::string_view category = utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point));
  if (std::string_view("LNPS").find(category.front()) == std::string_view::npos) return false;
  const std::string text = to_utf8(code_point);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &mapped, kOptions);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owned(mapped, std::free);
  TRIREME_CHECK(bytes >= 0, utf8proc_errmsg(bytes));
  return text == std::string_view(reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes));
}

std::string_view general_category(uint32_t code_point) { return utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point)); }

void append_lowercase(uint32_t code_point, std::string& text) {
  constexpr uint32_t kDotted = 0x130;  // the only character whose lower case is two
  text += code_point == kDotted ? "i\xCC\x87" : to_utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

std::string to_form(std::string_view text, bool composed, bool compatible) {
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> units;
  std::string made;
  while (!text.empty()) {
    const size_t valid = valid_utf8(text);
    append_form(text.substr(0, valid), options, units, made);
    made.append(text.substr(valid, 1));
    text.remove_prefix(std::min(text.size(), valid + 1));
  }
  return made;
}

std::string_view to_nfc(std::string_view text, std::string& room) {
  if (std::none_of(text.begin(), text.end(), nfc_byte)) return text;
  std::vector<utf8proc_int32_t> units;
  room.clear();
  for (std::string_view rest = text; !rest.empty();) {
    const size_t same = unchanged_by_nfc(rest);
    room.append(rest.substr(0, same));
    rest.remove_prefix(same);
    size_t end = rest.empty() ? 0 : 1;  // up to the next ASCII character, which never combines with its predecessor
    while (end < rest.size() && static_cast<unsigned char>(rest[end]) >= 0x80) ++end;
    for (std::string_view part = rest.substr(0, end); !part.empty();) {
      const size_t valid = valid_utf8(part);
      append_form(part.substr(0, valid), kNfc, units, room);
      room.append(part.substr(valid, 1));
      part.remove_prefix(std::min(part.size(), valid + 1));
    }
    rest.remove_prefix(end);
  }
  return room;
}

}  // namespace trireme
