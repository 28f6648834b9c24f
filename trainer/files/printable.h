#pragma once
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace trireme {

/// Escapes control characters, except newline and tab, characters that change the direction of text, and bytes that are not UTF-8, as in "\x1b":
/// messages quote untrusted files, which must not command the terminal.
std::string printable(std::string_view text);

/// Bytes at the end of `text` that begin a character and do not complete it.
size_t unfinished_character(std::string_view text);

/// The message of an error, escaped, with long lines cut in the middle. Errors of this program say themselves what is wrong. The text of any other exception ("stoi", "filesystem error:
/// ... [..]") never reaches a user: a failed operation on a file is reworded with its path, and everything else is a fault of this program by type.
std::string printable(const std::exception& error);

/// Exit code of a process that ends with this error.
ExitCode exit_code_of(const std::exception& error);

}  // namespace trireme
