#pragma once
#include <exception>
#include <string>
#include <string_view>

namespace trireme {

/// For a terminal: control characters but newline and tab, and bytes that are no UTF-8, as "\x1b". Messages quote files, and a file must not command the
/// terminal.
std::string printable(std::string_view text);

/// What an error says, for a terminal. The standard library's word for a failed allocation is no sentence.
std::string printable(const std::exception& error);

}  // namespace trireme
