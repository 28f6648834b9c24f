#include "trainer/config/write.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/check.h"
#include "trainer/config/fields.h"
#include "trainer/config/idle_keys.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }
std::string parent_of(const std::string& path) { return path.find('.') == path.npos ? "" : path.substr(0, path.rfind('.')); }

std::string indent_of(const std::string& path) { return std::string(2 * static_cast<size_t>(std::count(path.begin(), path.end(), '.')), ' '); }

Json json_of(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>)
          return "auto";
        else
          return v;
      },
      value);
}

Json range_schema(const char* type, const Field& field) {
  Json schema = {{"type", type}};
  const auto bound = [&](const char* name, double value) {
    if (std::string(type) == "integer")
      schema[name] = static_cast<int64_t>(value);
    else
      schema[name] = value;
  };
  if (field.min > -kUnbounded) bound(field.above_min ? "exclusiveMinimum" : "minimum", field.min);
  if (field.max < kUnbounded) bound(field.below_max ? "exclusiveMaximum" : "maximum", field.max);
  return schema;
}

Json type_schema(const FieldRow& row) {
  const Field& field = row.field;
  switch (row.type) {
    case FieldType::kBoolean: return {{"type", "boolean"}};
    case FieldType::kSwitchOrPath: return {{"anyOf", {{{"type", "boolean"}}, {{"type", "string"}, {"minLength", 1}}}}};
    case FieldType::kInteger: return range_schema("integer", field);
    case FieldType::kNumber: return range_schema("number", field);
    case FieldType::kIntegerList: return {{"type", "array"}, {"items", range_schema("integer", field)}, {"minItems", 1}};
    case FieldType::kNumberList: return {{"type", "array"}, {"items", range_schema("number", field)}, {"minItems", 1}};
    case FieldType::kTextList: {
      Json schema = {{"type", "array"}, {"items", {{"type", "string"}, {"minLength", 1}}}};
      if (field.required) schema["minItems"] = 1;
      return schema;
    }
    case FieldType::kText: break;
  }
  Json schema = {{"type", "string"}, {"minLength", 1}};
  if (!field.choices.empty()) schema = {{"enum", field.choices}};
  return schema;
}

Json field_schema(const FieldRow& row) {
  Json schema = type_schema(row);
  if (row.field.auto_rule && row.type != FieldType::kText) schema = {{"anyOf", {schema, {{"const", row.field.auto_name}}}}};
  if (row.field.or_null) schema = {{"anyOf", {schema, {{"type", "null"}}}}};
  const bool unset = std::holds_alternative<std::monostate>(row.value) && row.field.auto_rule == nullptr;
  if (!unset && !row.field.required) schema["default"] = is_auto(row) ? Json(row.field.auto_name) : json_of(row.value);
  schema["description"] = row.field.doc + (row.field.auto_rule ? concat(" ", row.field.auto_name, ": ", row.field.auto_rule, ".") : "");
  return schema;
}

Json section_schema(const FieldTable& table, const std::string& path, const std::string& doc) {
  Json properties = Json::object();
  for (const FieldRow& row : table.fields)
    if (parent_of(row.path) == path) properties[last_name(row.path)] = field_schema(row);
  for (const SectionRow& section : table.sections)
    if (parent_of(section.path) == path) properties[last_name(section.path)] = section_schema(table, section.path, section.doc);
  return {{"type", "object"}, {"description", doc}, {"properties", properties}, {"additionalProperties", false}};
}

/// Demands the required keys of the section `path`, and nothing else.
Json required_schema(const FieldTable& table, const std::string& path) {
  Json schema = Json::object();
  const auto require = [&](const std::string& name) { schema["required"].push_back(name); };
  for (const FieldRow& row : table.fields)
    if (row.field.required && parent_of(row.path) == path) require(last_name(row.path));
  for (const SectionRow& section : table.sections) {
    if (parent_of(section.path) != path) continue;
    const Json inner = required_schema(table, section.path);
    if (inner.empty()) continue;
    schema["properties"][last_name(section.path)] = inner;
    require(last_name(section.path));
  }
  return schema;
}

std::string yaml_of(const FieldTable& table, const std::function<bool(const std::string& path)>& wanted) {
  std::string out;
  std::set<std::string> begun;
  for (const FieldRow& row : table.fields) {
    const std::string value = written_value(row);
    if (value.empty() || !wanted(row.path)) continue;
    for (const SectionRow& section : table.sections)
      if (row.path.starts_with(section.path + ".") && begun.insert(section.path).second)
        out += indent_of(section.path) + last_name(section.path) + ":\n";
    out += indent_of(row.path) + last_name(row.path) + ": " + value + "\n";
  }
  return out;
}

constexpr const char* kIncludeDoc =
    "Path of a configuration file, relative to this one, or a list of paths. The file includes them: its own keys override theirs, and those of a "
    "later "
    "file override those of an earlier one. Sections merge key by key; lists and values are replaced.";

bool anything(const std::string&) { return true; }

Json schema_of(const std::string& title, const FieldTable& table, const std::string& doc) {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}};
  schema.update(section_schema(table, "", doc));
  return schema;
}

}  // namespace

std::string to_yaml(const Config& config) { return yaml_of(table_of(config), anything); }
std::string to_yaml(const ClusterConfig& cluster) { return yaml_of(table_of(cluster), anything); }

std::string to_yaml(const Config& config, const std::function<bool(const std::string& path)>& wanted) { return yaml_of(table_of(config), wanted); }

std::string json_schema() {
  Json schema = schema_of("Trireme configuration", table_of(Config{}), "One training run.");
  Json& keys = schema["properties"];
  const Json path = {{"type", "string"}, {"minLength", 1}};
  keys["include"] = {{"anyOf", {path, {{"type", "array"}, {"items", path}, {"minItems", 1}}}}, {"description", kIncludeDoc}};
  keys["training"]["not"] = {{"required", {"steps", "epochs"}}};
  // Required keys may be in an included file.
  Json whole = required_schema(table_of(Config{}), "");
  whole["properties"]["training"] = {{"anyOf", {{{"required", {"steps"}}}, {{"required", {"epochs"}}}}}};
  whole["required"].push_back("training");
  schema["if"] = {{"not", {{"required", {"include"}}}}};
  schema["then"] = whole;
  return schema.dump(2) + "\n";
}

std::string cluster_schema() {
  return schema_of("Trireme cluster", table_of(ClusterConfig{}), "Machines for a forecast of `trireme plan` or `trireme train`.").dump(2) + "\n";
}

std::string sweep_schema() {
  Json schema = schema_of("Trireme sweep", table_of(SweepConfig{}), "Runs of `trireme sweep`: a configuration and the values that vary.");
  for (const char* key : {"set", "axes"}) schema["properties"][key]["additionalProperties"] = true;  // keys of a configuration
  schema["required"] = {"base"};
  return schema.dump(2) + "\n";
}

std::string config_diff(const Config& a, const Config& b) {
  const auto shown = [](const std::string& value) { return value.empty() ? "not set" : value; };
  std::string out;
  for (const FieldDifference& one : differing_fields(a, b)) out += concat(one.before.path, ": ", shown(one.from), " -> ", shown(one.to), "\n");
  return out;
}

std::string explain(const LoadedConfig& loaded, const Config& resolved) {
  const FieldTable table = table_of(resolved);
  const FieldTable written = table_of(loaded.config);
  std::map<std::string, std::string> idle;
  for (const IdleKey& one : idle_keys(loaded, resolved)) idle[one.key] = one.why;
  std::string out;
  for (const FieldRow& row : table.fields) {
    const FieldRow& before = written.at(row.path);
    const bool given = loaded.sources.given(row.path);
    const std::string origin = given ? loaded.sources.name_of(loaded.sources.locate(row.path)) : "default";
    const bool unset = std::holds_alternative<std::monostate>(row.value) && row.field.auto_rule == nullptr;
    out += concat(row.path, " = ",
                  unset                                               ? "not set"
                  : std::holds_alternative<std::monostate>(row.value) ? row.field.auto_name
                                                                      : text_of(row.value),
                  "    # ", origin);
    if (is_auto(before)) out += concat(", ", row.field.auto_name, ": ", row.field.auto_rule);
    if (row.field.without_effect) out += concat(", without effect: ", row.field.without_effect);
    if (const auto found = idle.find(row.path); found != idle.end()) out += concat(", no effect here: ", found->second);
    out += concat("\n    ", row.field.doc, " Allowed: ", allowed_text(row.field, row.type), ".");
    if (row.field.auto_rule && !is_auto(before)) out += concat(" ", row.field.auto_name, ": ", row.field.auto_rule, ".");
    out += '\n';
  }
  return out;
}

}  // namespace trireme
