#include "trainer/sweep/axis_reader.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/sweep_visit.h"
#include "trainer/plan/text.h"

namespace trireme::sweep {
namespace {

constexpr const char* kForms =
    "a list of values; {grid: linspace | logspace, from, to, count}; {random: uniform | log_uniform, from, to}; or "
    "{random: choice, values}";

const YamlNode* part_of(const YamlNode& node, const std::string& key) {
  const auto found = std::ranges::find(node.children, key, &YamlNode::key);
  return found == node.children.end() ? nullptr : &*found;
}

/// A value between the ends of a grid with few digits, for people: six on a logarithmic axis; ten on a linear one, 0.1 rather than 0.10000000000000001.
double rounded(double value, bool log) { return decimal_number(print(log ? "%.6g" : "%.10g", value)).value_or(value); }

std::string scalar_text(const YamlNode& node) { return node.quoted ? text_of(FieldValue(node.text)) : node.text; }

}  // namespace

void AxisReader::refuse(const YamlNode& node, const std::string& rule, const std::string& allowed) {
  violations_.add({node.at, path_, node.kind == YamlNode::Kind::kScalar ? node.text : "", rule, allowed});
}

void AxisReader::refuse_part(const YamlNode& node, const char* part, const std::string& rule, const std::string& allowed) {
  const YamlNode* const given = part_of(node, part);
  violations_.add({given == nullptr ? node.at : given->at, concat(path_, ".", part),
                   given != nullptr && given->kind == YamlNode::Kind::kScalar ? given->text : "", rule, allowed});
}

/// The row of the key; nullptr after a violation.
const FieldRow* AxisReader::known_key(const YamlNode& node, const char* section) {
  path_ = concat(section, ".", node.key);
  const auto broken = [&](const std::string& rule) {
    violations_.add({node.key_at, path_, "", rule});
    return nullptr;
  };
  if (node.key == "run.directory" || node.key == "run.name") return broken("each point has its own, which the sweep gives it; remove the key");
  const auto found = std::ranges::find(known_.fields, node.key, &FieldRow::path);
  if (found != known_.fields.end()) return &*found;
  for (const SectionRow& row : known_.sections)
    if (row.path == node.key) return broken("a section of the configuration; give one of its keys, such as " + known_.fields[0].path);
  return broken("unknown key of the configuration" + key_suggestion(node.key));
}

/// A scalar or a list of scalars as YAML text; nullopt after a violation.
std::optional<Setting> AxisReader::value_of(const YamlNode& node) {
  const std::string key = path_.substr(path_.find('.') + 1);
  const auto is_scalar = [](const YamlNode& one) { return one.kind == YamlNode::Kind::kScalar; };
  if (is_scalar(node)) return Setting{key, scalar_text(node), node.at};
  if (node.kind == YamlNode::Kind::kSequence && std::ranges::all_of(node.children, is_scalar)) {
    std::string text = "[";
    for (const YamlNode& item : node.children) text += (text.size() > 1 ? ", " : "") + scalar_text(item);
    return Setting{key, text + "]", node.at};
  }
  if (node.kind != YamlNode::Kind::kRefused) refuse(node, "not a value", "a plain value or a list, e.g. [a, b]");
  return std::nullopt;
}

void AxisReader::read_fixed(const YamlNode& node, std::vector<Setting>& out) {
  if (known_key(node, "set") == nullptr) return;
  if (const std::optional<Setting> value = value_of(node)) out.push_back(*value);
}

void AxisReader::read_values(const YamlNode& list, std::vector<Setting>& out) {
  if (list.kind != YamlNode::Kind::kSequence) return refuse(list, "not a list of values", kForms);
  if (list.children.empty()) return refuse(list, "an empty list: the sweep would have no point", "at least one value");
  for (const YamlNode& item : list.children) {
    std::optional<Setting> value = value_of(item);
    if (!value) continue;
    const auto twice = std::ranges::find(out, value->value, &Setting::value);
    if (twice != out.end())
      violations_.add({item.at, path_, value->value, "the value is given twice", "each value once"});
    else
      out.push_back(std::move(*value));
  }
}

std::optional<double> AxisReader::number(const YamlNode& axis, const char* part) {
  const YamlNode* const node = part_of(axis, part);
  if (node == nullptr) {
    refuse_part(axis, part, "required key is missing", "number");
    return std::nullopt;
  }
  const bool plain = node->kind == YamlNode::Kind::kScalar && !node->quoted;
  const std::optional<double> value = plain ? decimal_number(node->text) : std::nullopt;
  if (!value && node->kind != YamlNode::Kind::kRefused) refuse_part(axis, part, "not a decimal number", "number");
  return value;
}

bool AxisReader::read_ends(const YamlNode& node, Axis& axis) {
  const std::optional<double> from = number(node, "from"), to = number(node, "to");
  if (!from || !to) return false;
  if (axis.log && *from <= 0) {
    refuse_part(node, "from", "has no logarithm", "number above 0");
    return false;
  }
  if (*from >= *to) {
    refuse_part(node, "to", concat("not above from=", setting_text(*from, false)), "a larger number than from");
    return false;
  }
  axis.from = *from;
  axis.to = *to;
  return true;
}

void AxisReader::read_grid(const YamlNode& node, Axis& axis) {
  const std::string kind = part_of(node, "grid")->text;
  if (kind != "linspace" && kind != "logspace") return refuse_part(node, "grid", "unknown kind of grid", "linspace | logspace");
  refuse_other_parts(node, {"grid", "from", "to", "count"});
  axis.log = kind == "logspace";
  const bool ends = read_ends(node, axis);
  const std::optional<double> count = number(node, "count");
  if (count && (*count < 2 || *count > kMostSweepPoints || *count != std::floor(*count)))
    return refuse_part(node, "count", *count == 1 ? "a grid has two ends" : "out of range",
                       "integer from 2 to 10000; one value is a list, e.g. [0.001]");
  if (!ends || !count) return;
  const auto last = static_cast<int64_t>(*count) - 1;
  for (int64_t i = 0; i <= last; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(last);
    double value = axis.log ? axis.from * std::pow(axis.to / axis.from, share) : axis.from + (axis.to - axis.from) * share;
    if (i == 0 || i == last)
      value = i == 0 ? axis.from : axis.to;  // exactly what the file says
    else if (!axis.integer)
      value = rounded(value, axis.log);
    Setting one{axis.key, setting_text(value, axis.integer), node.at};
    if (!axis.values.empty() && axis.values.back() == one)
      return refuse_part(node, "count", concat("two values are rounded to ", one.value), "fewer values");
    axis.values.push_back(std::move(one));
  }
}

void AxisReader::read_random(const YamlNode& node, Axis& axis) {
  const std::string kind = part_of(node, "random")->text;
  if (kind == "choice") {
    axis.kind = Axis::Kind::kChoice;
    refuse_other_parts(node, {"random", "values"});
    if (const YamlNode* const values = part_of(node, "values")) return read_values(*values, axis.values);
    return refuse_part(node, "values", "required key is missing", "list of values");
  }
  if (kind != "uniform" && kind != "log_uniform") return refuse_part(node, "random", "unknown distribution", "uniform | log_uniform | choice");
  axis.kind = kind == "uniform" ? Axis::Kind::kUniform : Axis::Kind::kLogUniform;
  axis.log = axis.kind == Axis::Kind::kLogUniform;
  refuse_other_parts(node, {"random", "from", "to"});
  read_ends(node, axis);
}

void AxisReader::refuse_other_parts(const YamlNode& node, const std::vector<std::string>& known) {
  for (const YamlNode& part : node.children) {
    if (std::ranges::find(known, part.key) != known.end()) continue;
    const std::string near = nearest_word(part.key, known, 2);
    violations_.add({part.key_at, concat(path_, ".", part.key), part.kind == YamlNode::Kind::kScalar ? part.text : "",
                     concat("unknown key of an axis", near.empty() ? "" : "; did you mean " + near + "?")});
  }
}

void AxisReader::read_axis(const YamlNode& node, std::vector<Axis>& out) {
  const FieldRow* const row = known_key(node, "axes");
  if (row == nullptr) return;
  Axis axis{.key = node.key, .integer = row->type == FieldType::kInteger, .at = node.key_at};
  if (node.kind == YamlNode::Kind::kSequence) {
    read_values(node, axis.values);
  } else if (node.kind != YamlNode::Kind::kMapping) {
    return refuse(node, "not the values of an axis", kForms);
  } else if (row->type != FieldType::kInteger && row->type != FieldType::kNumber && part_of(node, "values") == nullptr) {
    return refuse(node, "the key does not take numbers", "a list of values, or {random: choice, values}");
  } else if (const bool grid = part_of(node, "grid") != nullptr; grid == (part_of(node, "random") != nullptr)) {
    return refuse(node, grid ? "grid and random are both given" : "neither grid nor random is given", kForms);
  } else if (grid) {
    read_grid(node, axis);
  } else {
    read_random(node, axis);
  }
  out.push_back(std::move(axis));
}

}  // namespace trireme::sweep
