#include "trainer/files/printable.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <typeinfo>

namespace trireme {
namespace {

/// Size in bytes of a character that begins with this byte; 0 if none does.
size_t size_from(char begin) {
  const auto first = static_cast<unsigned char>(begin);
  return first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80; }

/// Size in bytes of the first character of `text`; 0 if it is not UTF-8. Accepts overlong forms and surrogates, which are harmless on a terminal.
size_t character_size(std::string_view text) {
  const size_t size = size_from(text[0]);
  if (size == 0 || size > text.size()) return 0;
  return std::all_of(text.begin() + 1, text.begin() + static_cast<ptrdiff_t>(size), continues_character) ? size : 0;
}

/// True for both sets of control characters: C0 with DEL, and C1 (U+0080 to U+009F), which includes 8-bit forms of escape sequences.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

/// "std::out_of_range"
std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

/// True for the characters that change the direction of text: what a line says could then be shown in another order than it is read by a program.
bool changes_direction(std::string_view character) {
  if (character == "\xd8\x9c") return true;  // U+061C
  if (character.size() != 3 || character[0] != '\xe2') return false;
  const auto second = static_cast<unsigned char>(character[1]), third = static_cast<unsigned char>(character[2]);
  if (second == 0x80) return third == 0x8e || third == 0x8f || (third >= 0xaa && third <= 0xae);  // U+200E, U+200F, U+202A to U+202E
  return second == 0x81 && third >= 0xa6 && third <= 0xa9;                                        // U+2066 to U+2069
}

/// Cuts long lines in the middle: a name from a file may have megabytes, and what is wrong with it comes last.
std::string with_short_lines(const std::string& text) {
  constexpr size_t kLongest = 4000, kBegin = 2500, kEnd = 1000;
  std::string shown;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    if (line.size() > kLongest) {
      size_t begins = kBegin, ends = line.size() - kEnd;
      while (continues_character(line[begins])) --begins;
      while (continues_character(line[ends])) --ends;
      shown += concat(line.substr(0, begins), " [... ", ends - begins, " bytes are left out ...] ", line.substr(ends));
    } else {
      shown += line;
    }
    if (end < text.size()) shown += '\n';
    at = end + 1;
  }
  return shown;
}

}  // namespace

size_t unfinished_character(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(text.size(), 3); ++length)
    if (const char c = text[text.size() - length]; !continues_character(c)) return size_from(c) > length ? length : 0;
  return 0;
}

std::string printable(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text.substr(at));
    const std::string_view character = text.substr(at, std::max<size_t>(size, 1));
    at += character.size();
    if (size > 0 && !is_control(character) && !changes_direction(character)) {
      shown += character;
      continue;
    }
    for (const char c : character) {
      const auto byte = static_cast<unsigned char>(c);
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return shown;
}

std::string printable(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return with_short_lines(printable(std::string_view(error.what())));
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "out of memory: an allocation failed; `trireme plan` reports how much memory a run needs";
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return printable(concat(file->path1().empty() ? "" : file->path1().string() + ": ", file->path2().empty() ? "" : file->path2().string() + ": ",
                            file->code().message()));
  if (const auto* const system = dynamic_cast<const std::system_error*>(&error))
    return printable(concat("the system refused: ", system->code().message()));
  return concat("a fault of this program (", type_name(error), "); please report it with the command and the configuration");
}

ExitCode exit_code_of(const std::exception& error) {
  if (const auto* const own = dynamic_cast<const Error*>(&error)) return own->code();
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return file->code() == std::errc::no_such_file_or_directory ? ExitCode::kMissingFile : ExitCode::kIo;
  return ExitCode::kInternal;
}

}  // namespace trireme
