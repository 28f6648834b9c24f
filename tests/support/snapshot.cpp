#include "tests/support/snapshot.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/command_output.h"

namespace trireme::test {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// `text` with every decimal fraction of more than six digits rounded to six.
std::string rounded(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    size_t end = 0, digits = 0, point = 0;
    for (; end < text.size() && (is_digit(text[end]) || (text[end] == '.' && point == 0 && end > 0)); ++end) is_digit(text[end]) ? ++digits : ++point;
    if (end == 0) {
      result += text.front();
      text.remove_prefix(1);
      continue;
    }
    if (end + 2 < text.size() && text[end] == 'e' && (is_digit(text[end + 1]) || is_digit(text[end + 2])))
      for (end += 2; end < text.size() && is_digit(text[end]);) ++end;
    const std::string number(text.substr(0, end));
    if (point == 1 && digits > 6) {
      char buffer[32];
      std::snprintf(buffer, sizeof buffer, "%.6g", std::atof(number.c_str()));
      result += buffer;
    } else {
      result += number;
    }
    text.remove_prefix(end);
  }
  return result;
}

}  // namespace

void check_snapshot(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/snapshots" / name;
  const std::string shown = rounded(text);
  const char* write = std::getenv("TRIREME_SNAPSHOTS");
  if (write != nullptr && std::string_view(write) == "write") {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << shown;
  }
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  const std::string wanted{std::istreambuf_iterator<char>(file), {}};
  std::istringstream new_lines(shown), old_lines(wanted);
  std::string before, now;
  for (int64_t line = 1;; ++line) {
    const bool more_before = static_cast<bool>(std::getline(old_lines, before)), more_now = static_cast<bool>(std::getline(new_lines, now));
    if (!more_before && !more_now) break;
    INFO(path << ", line " << line);
    REQUIRE((more_now ? now : "(the end)") == (more_before ? before : "(the end)"));
  }
  CHECK(shown == wanted);
}

std::string lines_of(const nlohmann::ordered_json& json, size_t indent) {
  constexpr size_t kWidth = 150;
  const std::string whole = json.dump();
  if (!json.is_structured() || json.empty() || indent + whole.size() <= kWidth) return whole;
  const std::string margin(indent + 1, ' ');
  std::string text(1, json.is_object() ? '{' : '[');
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    text += separator + margin + (json.is_object() ? nlohmann::ordered_json(key).dump() + ": " : "") + lines_of(value, indent + 1);
    separator = ",\n";
  }
  return text + "\n" + std::string(indent, ' ') + (json.is_object() ? '}' : ']');
}

std::string printed(const Scratch& scratch, const std::function<void(CLI::App&, int&)>& add, const std::string& arguments) {
  auto [exit_code, text] = command_output(add, arguments);
  CHECK(exit_code == 0);
  const std::string path = scratch / "";
  for (size_t at; (at = text.find(path)) != text.npos;) text.erase(at, path.size());
  return text;
}

}  // namespace trireme::test
