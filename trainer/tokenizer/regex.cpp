#include "trainer/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kernels/core/check.h"
#include "trainer/tokenizer/oniguruma.h"

namespace trireme {

std::string regex_error(int error) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

RegexCode compile_regex(const std::string& regex, const std::string& where) {
  const std::string translated = from_oniguruma(regex, where);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(pcre2_compile_context_create(nullptr),
                                                                                         pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get()),
      pcre2_code_free);
  if (!code) throw DataError(concat(where, ": regex ", regex, " is not supported: ", regex_error(error)));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing) throw DataError(concat(where, ": regex ", regex, " can match the empty string, which is not supported"));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);  // a failure is harmless: matching without JIT is slower
  return code;
}

std::string replace_matches(const RegexCode& code, std::string_view text, std::string_view content, const std::string& where) {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  TRIREME_CHECK(data, "out of memory for regex matching");
  std::string made;
  size_t at = 0;
  while (at < text.size()) {
    const int count = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) throw DataError(concat(where, ": a regex failed on a text: ", regex_error(count)));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    made.append(text.substr(at, offsets[0] - at)).append(content);
    at = offsets[1];
  }
  return made.append(text.substr(at));
}

}  // namespace trireme
