#pragma once
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace trireme {

/// Escapes control characters, except newline and tab, characters that change the direction of text, and bytes that are not UTF-8, as in "\x1b":
/// messages quote untrusted files, which must not command the terminal.
std::string printable(std::string_view text);

/// Bytes at the end of `text` that begin a character and do not complete it.
size_t unfinished_character(std::string_view text);

/// The message of an error, escaped, with long lines cut in the middle. Replaces the text of std::bad_alloc ("std::bad_alloc") by a readable message.
std::string printable(const std::exception& error);

}  // namespace trireme
