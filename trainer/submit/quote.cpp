#include "trainer/submit/quote.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"

namespace trireme::submit {
namespace {

constexpr std::string_view kLettersAndDigits = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

bool has_only(std::string_view text, const std::string& allowed) { return text.find_first_not_of(allowed) == text.npos; }

}  // namespace

std::string quoted_word(std::string_view text) {
  std::string word = "'";
  for (const char c : text) c == '\'' ? word += "'\\''" : word += c;
  return word + "'";
}

std::string shell_word(std::string_view text) {
  static const std::string harmless = std::string(kLettersAndDigits) + "._/=:,+@%-";
  return !text.empty() && has_only(text, harmless) ? std::string(text) : quoted_word(text);
}

std::string shell_word_of_element(std::string_view text) {
  std::string word;
  for (size_t at = 0;;) {
    const size_t next = text.find(kArrayIndex, at);
    const std::string_view part = text.substr(at, next == text.npos ? next : next - at);
    if (!part.empty() || text.empty()) word += shell_word(part);
    if (next == text.npos) return word;
    word += "\"$SLURM_ARRAY_TASK_ID\"";
    at = next + kArrayIndex.size();
  }
}

std::string text_of_element(std::string_view text, std::string_view index) {
  std::string out(text);
  for (size_t at = out.find(kArrayIndex); at != out.npos; at = out.find(kArrayIndex, at + index.size())) out.replace(at, kArrayIndex.size(), index);
  return out;
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string directive_value(const std::string& option, std::string_view text) {
  static const std::string bare = std::string(kLettersAndDigits) + "._/=:,+@%^[]-";
  if (!text.empty() && has_only(text, bare)) return std::string(text);
  const bool can = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '"' || c == '\\'; });
  if (!can)
    throw ConfigError(concat(option, ": \"", printable(text), "\" cannot be written in a batch script of Slurm; allowed are names without control ",
                             "characters, double quotes and backslashes"));
  return concat("\"", text, "\"");
}

std::string without_patterns(std::string_view text) {
  std::string out;
  for (const char c : text) out.append(c == '%' ? 2 : 1, c);
  return out;
}

std::string job_name_of(std::string_view run_name) {
  static const std::string allowed = std::string(kLettersAndDigits) + "._+-";
  constexpr size_t kMost = 64;
  std::string name(run_name.substr(0, kMost));
  for (char& c : name)
    if (allowed.find(c) == allowed.npos) c = '_';
  if (name.empty() || name[0] == '-') name.insert(0, "_");
  return name;
}

}  // namespace trireme::submit
