#pragma once
#include <string>
#include <string_view>

namespace trireme {

/// Translates a regex of `tokenizers` (Oniguruma, Ruby syntax) to PCRE2 syntax; matches the same text under PCRE2_UTF, UCP and MULTILINE.
/// Errors: DataError, prefixed with `where`, for rare constructs that the two engines interpret differently.
std::string from_oniguruma(std::string_view regex, const std::string& where);
/// Inside of a class: the characters that are Alphabetic, M, Nd or Pc, whichever tables an engine has for \w.
extern const std::string_view kWordCharacters;
/// A regex that matches exactly `text`.
std::string quoted_regex(std::string_view text);

}  // namespace trireme
