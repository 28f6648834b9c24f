#pragma once
#include <exception>
#include <string>
#include <string_view>

namespace trireme {

/// Escapes control characters, except newline and tab, and bytes that are not UTF-8, as in "\x1b": messages quote untrusted files, whose escape
/// sequences must not reach the terminal.
std::string printable(std::string_view text);

/// The message of an error, escaped. Replaces the text of std::bad_alloc ("std::bad_alloc") by a readable message.
std::string printable(const std::exception& error);

}  // namespace trireme
