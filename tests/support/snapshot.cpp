#include "tests/support/snapshot.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string_view>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/command_output.h"
#include "tests/support/places.h"

namespace trireme::test {
namespace {

/// `text` with every fraction of more than six significant digits rounded to six. Whole numbers stay as they are, also as 805120.0.
std::string rounded(const std::string& text) {
  static const std::regex number(R"((\d+)\.(\d+)(e[-+]\d+)?)");
  constexpr size_t kDigits = 6;
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator found(text.begin(), text.end(), number), end; found != end; ++found) {
    const std::string whole = (*found)[1], fraction = (*found)[2];
    result.append(rest, (*found)[0].first);
    rest = (*found)[0].second;
    if (whole.size() + fraction.size() <= kDigits || fraction.find_first_not_of('0') == fraction.npos) {
      result += found->str();
    } else {
      char buffer[64];
      std::snprintf(buffer, sizeof buffer, "%.6g", std::strtod(found->str().c_str(), nullptr));
      result += buffer;
    }
  }
  return result.append(rest, text.end());
}

}  // namespace

void check_snapshot(const std::string& name, const std::string& text) {
  const std::filesystem::path path = in_checkout("tests/snapshots/" + name);
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
