#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

struct CodePoint {
  uint32_t value;
  size_t bytes;  ///< 0: the text does not begin with a whole, valid character
};
/// The character a text begins with. No overlong forms, no surrogates, nothing above U+10FFFF.
CodePoint first_code_point(std::string_view text);
/// The character a text ends with.
CodePoint last_code_point(std::string_view text);
/// Bytes of the longest prefix that is valid UTF-8.
size_t valid_utf8(std::string_view text);
/// Bytes at the end of `text` that begin a character but do not end it: at most 3.
size_t unfinished_utf8(std::string_view text);
std::string to_utf8(uint32_t code_point);
/// Unicode's White_Space.
bool is_white_space(uint32_t code_point);

/// Whether NFC may change a text that has this byte: only characters from U+0300 on are changed or combine with the one before them.
inline bool nfc_byte(char byte) { return static_cast<unsigned char>(byte) >= 0xCC; }
/// Whether NFC leaves the text and any other before it apart, as far as the text's first character tells; not where it has none.
bool begins_apart_in_nfc(std::string_view text);
/// Whether this is a letter, number, symbol or mark of punctuation that Unicode's normalisation form KC leaves as it is.
bool unchanged_by_nfkc(uint32_t code_point);
/// The text in Unicode's normalisation form C, what is not UTF-8 unchanged. `room` holds the result where it differs from `text`.
std::string_view to_nfc(std::string_view text, std::string& room);

}  // namespace trireme
