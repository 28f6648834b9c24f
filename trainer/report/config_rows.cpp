#include "trainer/report/config_rows.h"

#include <algorithm>
#include <map>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/config/fields.h"
#include "trainer/layout/resolve.h"

namespace trireme::report {
namespace {

/// As in ConfigTexts: without the quotes of YAML.
std::string plain(const FieldRow& row) {
  FieldRow with_effect = row;
  with_effect.field.without_effect = nullptr;
  const std::string written = written_value(with_effect);
  if (written.empty()) return "";
  const ConfigTexts texts = config_texts("key: " + written);
  return texts.empty() || texts.front().second == "[]" ? "" : texts.front().second;
}

/// What `auto` of a key would be in this run; nullopt if that depends on the machine, or if the configuration is of another version.
std::optional<std::string> automatic_value(const RunRecord& run, const FieldRow& row) {
  if (run.config_yaml.empty()) return std::nullopt;
  try {
    const Config config = resolve(parse_config(run.config_yaml, "config.yaml", {concat(row.path, "=", row.field.auto_name)}));
    const FieldTable table = table_of(config);
    const FieldRow& resolved = table.at(row.path);
    return is_auto(resolved) ? std::nullopt : std::optional(plain(resolved));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_label(const std::string& key) { return key == "run.name" || key == "run.directory"; }

std::vector<ConfigRow> config_rows(std::span<const RunRecord* const> runs) {
  std::vector<std::string> keys;
  std::map<std::string, FieldRow> known;
  const FieldTable defaults = table_of(Config{});
  for (const FieldRow& row : defaults.fields) {
    keys.push_back(row.path);
    known.emplace(row.path, row);
  }
  for (const RunRecord* const run : runs)
    for (const auto& [key, value] : run->config)
      if (!known.contains(key) && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);

  std::vector<ConfigRow> rows;
  for (const std::string& key : keys) {
    ConfigRow row{.key = key, .values = {}, .default_text = {}, .differs = {}};
    for (const RunRecord* const run : runs) row.values.push_back(run->value(key));
    if (std::ranges::all_of(row.values, [](const std::string& value) { return value.empty(); })) continue;
    const auto found = known.find(key);
    if (found != known.end() && !found->second.field.required) row.default_text = plain(found->second);
    std::string of_first;  // added behind the loop, which compares with the default itself
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string& value = row.values[i];
      if (value.empty() || is_label(key) || found == known.end() || !is_auto(found->second)) {
        row.differs.push_back(!value.empty() && !is_label(key) && value != row.default_text);
        continue;
      }
      const std::optional<std::string> automatic = value == row.default_text ? std::nullopt : automatic_value(*runs[i], found->second);
      row.differs.push_back(automatic && *automatic != value);
      if (i == 0 && automatic) of_first = concat(" (", *automatic, ")");
    }
    row.default_text += of_first;
    row.same = std::ranges::all_of(row.values, [&](const std::string& value) { return value == row.values.front(); });
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace trireme::report
