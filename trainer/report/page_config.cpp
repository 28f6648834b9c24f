#include <algorithm>
#include <map>

#include "kernels/core/check.h"
#include "trainer/report/config_rows.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

/// A key with places where a narrow column may break it.
std::string key_markup(const std::string& key) {
  std::string text;
  for (const char c : markup(key)) {
    text += c;
    if (c == '.' || c == '_') text += "<wbr>";
  }
  return text;
}

/// A table of all keys, or of those that differ between the runs.
std::string config_table(std::span<const RunView> runs, bool differing) {
  std::vector<const RunRecord*> records;
  for (const RunView& view : runs) records.push_back(view.run);
  std::string body;
  for (const ConfigRow& row : config_rows(records)) {
    const bool set = std::ranges::find(row.differs, true) != row.differs.end();
    if (differing && (row.same || is_label(row.key))) continue;
    body += concat("<tr class=\"", set || differing || !row.same ? "" : "plain", "\"><th scope=\"row\">", key_markup(row.key), "</th>");
    for (size_t i = 0; i < runs.size(); ++i)
      body += concat("<td class=\"r", i, row.differs[i] ? " set" : "", "\">", row.values[i].empty() ? "–" : markup(row.values[i]), "</td>");
    body += concat("<td class=\"default\">", row.default_text.empty() ? "–" : markup(row.default_text), "</td></tr>\n");
  }
  if (body.empty()) return "";
  return concat("<div class=\"scroll\"><table class=\"config", runs.size() > 1 ? " several" : "", "\">", table_head(runs, "key", "default"),
                "<tbody>", body, "</tbody></table></div>\n");
}

/// environment.json of all runs: one row for each member, nested names joined by dots.
void flatten(const ordered_json& value, const std::string& path, std::vector<std::pair<std::string, std::string>>& out) {
  if (!value.is_object()) {
    out.emplace_back(path, value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : json_text(value));
    return;
  }
  for (const auto& [key, item] : value.items()) flatten(item, path.empty() ? key : path + "." + key, out);
}

}  // namespace

std::string differences_section(std::span<const RunView> runs) {
  if (runs.size() == 1) return "";
  const std::string table = config_table(runs, true);
  return table.empty() ? "<p>All keys are equal, except for names and directories.</p>\n" : table;
}

std::string configuration_section(std::span<const RunView> runs) {
  const std::string table = config_table(runs, false);
  if (table.empty()) return "";
  return concat(
      "<p class=\"note\">A dot and bold type mark values that differ from the default. A default in brackets is what <code>auto</code> is here.",
      "</p>\n<label class=\"toggle\" for=\"config-all\">Show or hide the keys with default values</label>\n", table);
}

std::string environment_section(std::span<const RunView> runs) {
  std::vector<std::string> keys;
  std::vector<std::map<std::string, std::string>> all;
  for (const RunView& view : runs) {
    std::vector<std::pair<std::string, std::string>> flat;
    if (!view.run->environment.empty()) flatten(view.run->environment, "", flat);
    for (const auto& [key, value] : flat)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    all.emplace_back(flat.begin(), flat.end());
  }
  std::string body;
  for (const std::string& key : keys) {
    body += concat("<tr><th scope=\"row\">", markup(key), "</th>");
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto found = all[i].find(key);
      body += concat("<td class=\"r", i, "\">", found == all[i].end() ? "–" : markup(found->second), "</td>");
    }
    body += "</tr>\n";
  }
  if (body.empty()) return "";
  return concat("<div class=\"scroll\"><table class=\"config", runs.size() > 1 ? " several" : "", "\">", table_head(runs, "environment"), "<tbody>",
                body, "</tbody></table></div>\n");
}

}  // namespace trireme::report
