#pragma once
#include <string>
#include <string_view>

namespace trireme {

/// A regex of `tokenizers` (Oniguruma, Ruby's syntax) in the syntax of PCRE2, matching the same text under PCRE2_UTF, UCP and MULTILINE.
/// Errors: DataError for what the two read differently and what is rare enough not to be translated; `where` opens the message.
std::string from_oniguruma(std::string_view regex, const std::string& where);
/// A regex that matches this text and nothing else.
std::string quoted_regex(std::string_view text);

}  // namespace trireme
