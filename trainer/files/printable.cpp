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

/// Size in bytes of the first character of `text`; 0 if it is not UTF-8. Accepts overlong forms and surrogates, which are harmless on a terminal.
size_t character_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t size = first < 0x80                    ? 1
                      : first >= 0xc2 && first < 0xe0 ? 2
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first >= 0xf0 && first < 0xf5 ? 4
                                                      : 0;
  if (size == 0 || size > text.size()) return 0;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80; };
  return std::all_of(text.begin() + 1, text.begin() + static_cast<ptrdiff_t>(size), continues) ? size : 0;
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

}  // namespace

std::string printable(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text.substr(at));
    const std::string_view character = text.substr(at, std::max<size_t>(size, 1));
    at += character.size();
    if (size > 0 && !is_control(character)) {
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
  if (dynamic_cast<const Error*>(&error) != nullptr) return printable(std::string_view(error.what()));
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
