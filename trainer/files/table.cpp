#include "trainer/files/table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/files/plain_zero.h"

namespace trireme {
namespace {

std::string text_of(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (value.is_number_integer()) return value.dump();
  const double number = value.get<double>();
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), std::abs(number) >= 1000 ? "%.0f" : "%.4g", number);
  return plain_zero(text.data());
}

}  // namespace

std::string table_of(const nlohmann::ordered_json& rows) {
  if (rows.empty()) return "";
  std::vector<std::vector<std::string>> cells(1);
  for (const auto& [key, value] : rows.front().items()) cells.front().push_back(key);
  for (const auto& row : rows) {
    auto& line = cells.emplace_back();
    for (const auto& [key, value] : row.items()) line.push_back(text_of(value));
    TRIREME_CHECK(line.size() == cells.front().size(), "rows of a table differ in their keys");
  }
  std::vector<size_t> widths(cells.front().size());
  for (const auto& line : cells)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  std::string out;
  for (const auto& line : cells) {
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string padding(widths[c] - line[c].size(), ' ');
      const bool name = rows.front().items().begin().value().is_string() && c == 0;
      out += name ? "  " + line[c] + padding : "  " + padding + line[c];
    }
    out += "\n";
  }
  return out;
}

std::string binary_bytes_text(double bytes) {
  size_t unit = 0;
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g %s", bytes, kUnits[unit]);
  return text.data();
}

}  // namespace trireme
