#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

struct CodePoint {
  uint32_t value;
  size_t bytes;  ///< 0: there is no complete, valid character
};
/// The first character of a text. Overlong forms, surrogates and values above U+10FFFF are invalid.
CodePoint first_code_point(std::string_view text);
/// The last character of a text.
CodePoint last_code_point(std::string_view text);
/// Length in bytes of the longest prefix that is valid UTF-8.
size_t valid_utf8(std::string_view text);
/// Length in bytes of an incomplete character at the end of `text`: at most 3.
size_t unfinished_utf8(std::string_view text);
std::string to_utf8(uint32_t code_point);
/// Unicode property White_Space.
bool is_white_space(uint32_t code_point);

/// A letter, mark, decimal digit or connector as in `\w` of the regexes of Rust: Alphabetic, M, Nd, Pc, Join_Control.
bool is_word_character(uint32_t code_point);

/// True if NFC can change a text that contains this byte: only characters from U+0300 on change or combine with their predecessor.
inline bool nfc_byte(char byte) { return static_cast<unsigned char>(byte) >= 0xCC; }
/// True if the first character of `text` never combines with a preceding one under NFC; false if there is no valid first character.
bool is_nfc_boundary(std::string_view text);
/// True for a letter, number, symbol or punctuation mark that Unicode normalisation form KC does not change.
bool unchanged_by_nfkc(uint32_t code_point);
/// General category of Unicode, as "Lu".
std::string_view general_category(uint32_t code_point);
/// Appends the lower case of a character without regard to its neighbours.
void append_lowercase(uint32_t code_point, std::string& text);
/// Normalises to form C or D, or with `compatible` KC or KD; bytes that are not UTF-8 stay unchanged.
std::string to_form(std::string_view text, bool composed, bool compatible);
/// Normalises to Unicode form C; bytes that are not UTF-8 stay unchanged. The result refers to `text` if nothing changes, else to `room`.
std::string_view to_nfc(std::string_view text, std::string& room);

}  // namespace trireme
