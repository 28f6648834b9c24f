#include "trainer/tokenizer/oniguruma.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "kernels/core/check.h"

namespace trireme {
namespace {

// Unicode property White_Space; \s of PCRE2 also includes U+180E.
constexpr std::string_view kWhiteSpace = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class Translation {
 public:
  Translation(std::string_view regex, const std::string& where) : regex_(regex), where_(where) {}

  std::string run() {
    while (at_ < regex_.size()) {
      const char c = regex_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        in_class(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        open_group();
      } else if (c == '{') {
        interval();
      } else if (c == '^') {
        // Spelled as a lookbehind because PCRE2 does not report its own ^ as one. In both engines, no line begins after a final line feed.
        out_.append(R"((?:(?<![^\n])(?!\z)))");
        ++at_;
      } else {
        take(1);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(
        concat(where_, ": regex ", regex_, " contains ", what, ", which is not supported because regex engines interpret it differently"));
  }
  std::string_view rest() const { return regex_.substr(at_); }
  void take(size_t count) {
    out_.append(regex_.substr(at_, count));
    at_ += count;
  }

  void in_class(char c) {
    if (c == '[') refuse("a nested class");
    if (rest().starts_with("&&")) refuse("a class intersection");
    if (c == ']') in_class_ = false;
    take(1);
  }

  void open_class() {
    take(rest().starts_with("[^") ? 2 : 1);
    if (rest().starts_with("]")) refuse("a class that begins with ]");
    in_class_ = true;
    class_begin_ = out_.size();
  }

  void open_group() {
    constexpr std::array<std::string_view, 7> kGroups = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    if (rest().starts_with("(*")) refuse("(*");
    if (!rest().starts_with("(?")) return take(1);
    if (at_ == 0 && rest().starts_with("(?i)")) return take(4);
    for (const std::string_view group : kGroups)
      if (rest().starts_with(group)) return take(group.size());
    refuse(concat("the group ", rest().substr(0, 4)));
  }

  /// Handles {n}, {n,} and {n,m}; any other brace is literal in both syntaxes.
  void interval() {
    if (rest().starts_with("{,")) refuse("{,n}");
    const size_t end = rest().find('}');
    const std::string_view inside = end == std::string_view::npos ? std::string_view() : rest().substr(1, end - 1);
    const bool counts = !inside.empty() && is_ascii_digit(inside.front()) && inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!counts) return take(1);
    take(end + 1);
    if (rest().starts_with("+") || rest().starts_with("?")) refuse("an interval followed by + or ?");
  }

  void escape() {
    if (rest().size() < 2) refuse("a trailing \\");
    const char c = regex_[at_ + 1];
    const auto replace = [&](std::string_view by, size_t length) {
      out_.append(by);
      at_ += length;
    };
    switch (c) {
      case 's': return white_space();
      case 'S':
        if (in_class_) refuse("\\S in a class");
        return replace(concat("[^", kWhiteSpace, "]"), 2);
      case 'w': return word();
      case 'd': return replace("\\p{Nd}", 2);
      case 'D': return replace("\\P{Nd}", 2);
      case 'p':
      case 'P': return property();
      case 'x':
      case 'u': return code_point();
      case 'r':
      case 'n':
      case 't':
      case 'f': return take(2);
      default: break;
    }
    if (is_ascii_letter(c) || is_ascii_digit(c) || static_cast<unsigned char>(c) >= 0x80) refuse(concat("\\", c));
    take(2);
  }

  void white_space() {
    if (in_class_ && out_.size() > class_begin_ && out_.back() == '-') refuse("a range up to \\s");
    out_.append(in_class_ ? std::string(kWhiteSpace) : concat("[", kWhiteSpace, "]"));
    at_ += 2;
    if (in_class_ && rest().starts_with("-") && !rest().starts_with("-]")) refuse("a range from \\s");
  }

  void word() {
    if (in_class_ && out_.size() > class_begin_ && out_.back() == '-') refuse("a range up to \\w");
    constexpr std::string_view kLatin = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";  // numbers that Oniguruma counts too
    out_.append(in_class_ ? concat(kWordCharacters, kLatin) : concat("[", kWordCharacters, kLatin, "]"));
    at_ += 2;
    if (in_class_ && rest().starts_with("-") && !rest().starts_with("-]")) refuse("a range from \\w");
  }

  /// General categories mean the same in both engines. Any other name is a script, which PCRE2 would extend to Script_Extensions without "sc:".
  void property() {
    const size_t end = rest().find('}');
    if (!rest().substr(2).starts_with("{") || end == std::string_view::npos) refuse("\\p without {name}");
    std::string_view name = rest().substr(3, end - 3);
    const bool negated = name.starts_with("^");
    if (negated) name.remove_prefix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](char c) { return is_ascii_letter(c) || c == '_'; }))
      refuse(rest().substr(0, end + 1));
    const bool category = name.size() <= 2 && std::string_view("CLMNPSZ").find(name.front()) != std::string_view::npos;
    out_.append({'\\', regex_[at_ + 1]}).append(negated ? "{^" : "{").append(category ? "" : "sc:").append(name).append("}");
    at_ += end + 1;
  }

  /// Handles \xHH (ASCII only: above, it denotes a byte, not a character), \x{H...} and \uHHHH.
  void code_point() {
    const bool braces = rest().substr(2).starts_with("{") && regex_[at_ + 1] == 'x';
    const size_t begin = braces ? 3 : 2;
    size_t digits = 0;
    while (begin + digits < rest().size() && std::isxdigit(static_cast<unsigned char>(rest()[begin + digits]))) ++digits;
    if (!braces) digits = std::min<size_t>(digits, regex_[at_ + 1] == 'x' ? 2 : 4);
    const std::string_view number = rest().substr(begin, digits);
    const bool closed = !braces || (begin + digits < rest().size() && rest()[begin + digits] == '}');
    const bool ascii_byte = number.size() == 2 && number.front() < '8';
    const bool fits = braces ? digits > 0 && digits <= 6 : regex_[at_ + 1] == 'x' ? ascii_byte : digits == 4;
    if (!closed || !fits) refuse(rest().substr(0, begin + digits));
    out_.append("\\x{").append(number).append("}");
    at_ += begin + digits + (braces ? 1 : 0);
  }

  std::string_view regex_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
  bool in_class_ = false;
  size_t class_begin_ = 0;  ///< begin of the class in out_, after [ or [^
};

}  // namespace

// The symbols among the alphabetic characters are circled letters.
const std::string_view kWordCharacters = R"(\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

std::string from_oniguruma(std::string_view regex, const std::string& where) { return Translation(regex, where).run(); }

std::string quoted_regex(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    const bool plain = is_ascii_letter(c) || is_ascii_digit(c) || static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20;
    if (!plain) regex.push_back('\\');
    regex.push_back(c);
  }
  return regex;
}

}  // namespace trireme
