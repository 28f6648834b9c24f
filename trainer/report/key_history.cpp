#include "trainer/report/key_history.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "trainer/config/fields.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

/// Equal texts, or texts of the same number: 1e-3 in an event is 0.001 in a file.
bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  char *end_a = nullptr, *end_b = nullptr;
  const double left = std::strtod(a.c_str(), &end_a), right = std::strtod(b.c_str(), &end_b);
  return !a.empty() && !b.empty() && *end_a == '\0' && *end_b == '\0' && left == right;
}

/// A change of a key by `train --resume --change`.
struct Change {
  int64_t step = 0;  ///< after which the new value holds
  std::string old_value, new_value;
};

/// The values with which a run trained its steps.
struct KeyHistory {
  std::string start;
  std::vector<Change> changes;

  std::string at(int64_t step) const {
    std::string value = start;
    for (const Change& change : changes)
      if (change.step < step) value = change.new_value;
    return value;
  }
};

/// A job that begins at a step, or before it, undoes what an earlier one has changed there, and records it again if it changes it too.
KeyHistory history_of(const RunRecord& run, const std::string& key) {
  std::vector<Change> changes;
  for (const EventRecord& event : run.events) {
    if (event.kind == "start") std::erase_if(changes, [&](const Change& change) { return change.step >= event.after_step; });
    if (event.kind != "change" || !event.fields.contains("changes") || !event.fields["changes"].is_object()) continue;
    const ordered_json& all = event.fields["changes"];
    if (all.contains(key) && all[key].is_array() && all[key].size() == 2)
      changes.push_back({event.after_step, value_text(all[key][0]), value_text(all[key][1])});
  }
  const std::string start = changes.empty() ? run.value(key) : changes.front().old_value;
  return {start, std::move(changes)};
}

/// The first step that two runs train with different values; nullopt if there is none.
std::optional<int64_t> first_difference(const KeyHistory& a, const KeyHistory& b) {
  std::set<int64_t> steps{1};
  for (const KeyHistory* history : {&a, &b})
    for (const Change& change : history->changes) steps.insert(change.step + 1);
  for (const int64_t step : steps)
    if (!same_value(a.at(step), b.at(step))) return step;
  return std::nullopt;
}

Aspect aspect_of(const FieldTable& table, const std::string& key) {
  const auto row = std::ranges::find(table.fields, key, &FieldRow::path);
  return row == table.fields.end() ? Aspect::kMathematics : row->field.decides;
}

}  // namespace

std::string value_text(const ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const ordered_json& item : value) items.push_back(value_text(item));
  return "[" + joined(items, ", ") + "]";
}

std::optional<int64_t> first_step_with_other_values(const RunRecord& a, const RunRecord& b, const std::string& key) {
  return first_difference(history_of(a, key), history_of(b, key));
}

std::vector<KeyValues> differing_keys(const RunRecord& a, const RunRecord& b) {
  const FieldTable table = table_of(Config{});
  std::vector<std::string> keys;
  for (const RunRecord* run : {&a, &b})
    for (const auto& [key, value] : run->config)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  std::vector<KeyValues> found;
  for (const std::string& key : keys) {
    const KeyHistory in_a = history_of(a, key), in_b = history_of(b, key);
    const std::optional<int64_t> since = first_difference(in_a, in_b);
    const bool ends_equal = same_value(a.value(key), b.value(key));
    if (ends_equal && !since) continue;
    KeyValues one{.key = key, .values = {a.value(key), b.value(key)}, .decides = aspect_of(table, key), .ends_equal = ends_equal};
    if (ends_equal) one.values = {in_a.at(*since), in_b.at(*since)};
    if (ends_equal || since.value_or(1) > 1)
      one.remark = concat("since step ", *since, *since > 1 ? ", by --change" : "", ends_equal ? "; equal at the end" : "");
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace trireme::report
