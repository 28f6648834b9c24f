#pragma once
// Regular expressions of a tokenizer.json, compiled by PCRE2.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

struct pcre2_real_code_8;

namespace trireme {

using RegexCode = std::shared_ptr<const pcre2_real_code_8>;

/// Compiles a regex in Oniguruma's Ruby syntax, as `tokenizers` reads them. Errors: DataError, prefixed with `where`, for a regex that is invalid, could match
/// differently than in `tokenizers`, or can match the empty string.
RegexCode compile_regex(const std::string& regex, const std::string& where);
/// What PCRE2 says about an error.
std::string regex_error(int error);

/// `text`, which is valid UTF-8, with every match replaced by `content`. Thread-safe. Errors: DataError if the regex exceeds its match limits.
std::string replace_matches(const RegexCode& code, std::string_view text, std::string_view content, const std::string& where);

}  // namespace trireme
