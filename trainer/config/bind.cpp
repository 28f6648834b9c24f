#include "trainer/config/bind.h"
#include "trainer/config/foreign_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/config/cluster_visit.h"
#include "trainer/config/fields.h"
#include "trainer/config/sweep_visit.h"

namespace trireme {
namespace {

std::string kind_name(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "no value";
    case YamlNode::Kind::kScalar: return node.quoted ? "quoted text" : "text";
    case YamlNode::Kind::kSequence: return "a list";
    case YamlNode::Kind::kMapping: return "a section";
    case YamlNode::Kind::kRefused: break;
  }
  return "refused";
}

/// -?digits[.digits][e[+-]digits] without leading zeros: decimal numbers that every YAML parser reads as the same value.
bool is_decimal(std::string_view text, bool& integral) {
  size_t i = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - begin;
  };
  const size_t whole_at = i;
  const size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[whole_at] == '0')) return false;
  integral = i == text.size();
  if (i < text.size() && text[i] == '.') {
    ++i;
    digits();
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

/// Returns nullopt, with the reason in `rule`, if the text is not a finite double.
std::optional<double> parse_number(const std::string& text, std::string& rule) {
  bool integral = false;
  double value = 0;
  if (!is_decimal(text, integral)) {
    rule = "not a decimal number";
    return std::nullopt;
  }
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) {
    rule = "too large or too small for a double-precision number";
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> parse_integer(const std::string& text, std::string& rule, std::string& nearest) {
  bool integral = false;
  if (!is_decimal(text, integral)) {
    rule = "not an integer in decimal digits";
    return std::nullopt;
  }
  int64_t value = 0;
  if (integral) {
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{}) return value;
    rule = "does not fit 64 bits";
    return std::nullopt;
  }
  rule = "not an integer in plain digits";
  std::string ignored;
  const std::optional<double> number = parse_number(text, ignored);
  if (number && std::abs(*number) < 1e15) nearest = std::to_string(std::llround(*number));
  return std::nullopt;
}

class Binder {
 public:
  Binder(const YamlNode& root, Sources& sources, Violations& violations, const FieldTable& known, bool is_run)
      : section_(&root), sources_(sources), violations_(violations), known_(known), is_run_(is_run) {}

  template <class T>
  void operator()(const Field& field, T& target) {
    path_ = prefix_ + field.key;
    const YamlNode* node = take(field.key);
    if (node == nullptr) {
      if (field.required) violations_.add({sources_.locate(path_), path_, "", "required key is missing", allowed()});
      return;
    }
    if (node->kind == YamlNode::Kind::kRefused) return;
    if (node->kind == YamlNode::Kind::kNull && field.or_null) return;  // null is the default
    if (node->kind == YamlNode::Kind::kNull) return refuse(*node, "no value is given", allowed());
    read(field, *node, target);
  }

  template <class Section>
  void section(const char* key, const char*, Section& part) {
    const std::string outer = prefix_;
    const YamlNode* outer_section = section_;
    path_ = prefix_ + key;
    static const YamlNode kEmpty{.kind = YamlNode::Kind::kMapping};
    const YamlNode* node = take(key);
    if (node != nullptr && (node->kind == YamlNode::Kind::kScalar || node->kind == YamlNode::Kind::kSequence))
      refuse(*node, concat("a section with keys is expected, not ", kind_name(*node)));
    if (node != nullptr && node->kind == YamlNode::Kind::kNull && node->at.source > 0)  // in a file, a section may be empty
      refuse(*node, "null is no section", "its keys one at a time");
    section_ = node != nullptr && node->kind == YamlNode::Kind::kMapping ? node : &kEmpty;  // an empty section keeps its defaults
    prefix_ = outer + key + ".";
    visit(*this, part);
    refuse_unknown();
    section_ = outer_section;
    prefix_ = outer;
  }

  /// Called after the visit of a section. Reports every child that is not a known key.
  void refuse_unknown() {
    for (const YamlNode& child : section_->children) {
      const std::string path = prefix_ + child.key;
      const auto is_key = [&](const auto& row) { return row.path == path; };
      const bool known =
          std::any_of(known_.fields.begin(), known_.fields.end(), is_key) || std::any_of(known_.sections.begin(), known_.sections.end(), is_key);
      if (child.key == "<<" || (known && child.key.find('.') == child.key.npos)) continue;  // the reader has reported the merge key
      const std::string rule =
          child.key == "include" ? "allowed only at the top level of a configuration file" : "unknown key" + suggestion(child.key);
      violations_.add({child.key_at, path, child.kind == YamlNode::Kind::kScalar ? child.text : "", rule});
    }
  }

 private:
  /// Returns the child with this name in the current section. The reader reports duplicates; the first one is used.
  const YamlNode* take(const char* key) {
    const auto child = std::find_if(section_->children.begin(), section_->children.end(), [&](const YamlNode& c) { return c.key == key; });
    if (child == section_->children.end()) return nullptr;
    sources_.keys[path_] = child->kind == YamlNode::Kind::kMapping ? child->key_at : child->at;
    return &*child;
  }

  void refuse(const YamlNode& node, const std::string& rule, const std::string& allowed = {}, const std::string& nearest = {}) {
    violations_.add({node.at, path_, node.kind == YamlNode::Kind::kScalar ? node.text : "", rule, allowed, nearest});
  }

  std::string allowed() const {
    const FieldRow& row = known_.at(path_);
    return allowed_text(row.field, row.type);
  }

  /// Accepts an unquoted scalar, which may be a number or a boolean; reports anything else.
  bool is_plain(const Field& field, const YamlNode& node) {
    if (node.kind == YamlNode::Kind::kScalar && !node.quoted) return true;
    if (is_auto(field, node)) return true;
    bool integral = false;
    const bool unquote = node.quoted && (is_decimal(node.text, integral) || node.text == "true" || node.text == "false");
    refuse(node, concat(kind_name(node), " where a plain value is expected"), allowed(), unquote ? node.text + " without quotes" : "");
    return false;
  }

  static bool is_auto(const Field& field, const YamlNode& node) {
    return field.auto_rule && node.kind == YamlNode::Kind::kScalar && node.text == field.auto_name;
  }

  void read(const Field& field, const YamlNode& node, bool& target) {
    if (is_plain(field, node)) read_switch(node, target);
  }

  /// A quoted text is a path; without quotes a word that other programs take for a boolean is refused as such.
  void read(const Field&, const YamlNode& node, SwitchOrPath& target) {
    if (!is_text(node)) return;
    bool on = false;
    if (node.quoted || !(is_word_for(true, node.text) || is_word_for(false, node.text))) {
      target = node.text;
    } else if (read_switch(node, on)) {
      target = on;
    }
  }

  /// Words that some program takes for this boolean.
  static const std::vector<std::string>& words_for(bool value) {
    static const std::vector<std::string> yes = {"true", "yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE", "1", "y"};
    static const std::vector<std::string> no = {"false", "no", "No", "NO", "off", "Off", "OFF", "False", "FALSE", "0", "n"};
    return value ? yes : no;
  }
  static bool is_word_for(bool value, const std::string& text) { return std::ranges::find(words_for(value), text) != words_for(value).end(); }

  bool read_switch(const YamlNode& node, bool& target) {
    if (node.text == "true" || node.text == "false") {
      target = node.text == "true";
      return true;
    }
    refuse(node, "not a boolean", allowed(), is_word_for(true, node.text) ? "true" : is_word_for(false, node.text) ? "false" : "");
    return false;
  }

  void read(const Field& field, const YamlNode& node, int64_t& target) {
    if (!is_plain(field, node)) return;
    std::string rule, nearest;
    const std::optional<int64_t> value = parse_integer(node.text, rule, nearest);
    if (!value) return refuse(node, rule, allowed(), nearest);
    target = *value;
  }

  void read(const Field& field, const YamlNode& node, double& target) {
    if (!is_plain(field, node)) return;
    std::string rule;
    const std::optional<double> value = parse_number(node.text, rule);
    if (!value) return refuse(node, rule, allowed());
    target = *value;
  }

  bool is_text(const YamlNode& node) {
    if (node.kind == YamlNode::Kind::kScalar && !node.text.empty()) return true;
    refuse(node, node.kind == YamlNode::Kind::kScalar ? "empty text" : concat(kind_name(node), " where text is expected"), allowed());
    return false;
  }

  void read(const Field& field, const YamlNode& node, std::string& target) {
    if (!is_text(node)) return;
    const bool chosen = !field.choices.empty();  // `auto` is then one of the choices and is kept as text
    target = is_auto(field, node) && !chosen ? "" : node.text;
  }

  void read(const Field&, const YamlNode& node, std::optional<std::string>& target) {
    if (is_text(node)) target = node.text;
  }

  template <class E>
  void read(const Field&, const YamlNode& node, OneOf<E>& target) {
    if (is_text(node)) target = OneOf<E>(node.text);
  }

  template <class T>
  void read(const Field& field, const YamlNode& node, Auto<T>& target) {
    T value = 0;
    target.reset();
    if (is_auto(field, node)) return;
    if (!is_plain(field, node)) return;
    read(field, node, value);
    if (!violations_.touch(path_)) target = value;
  }

  template <class T>
  void read(const Field& field, const YamlNode& node, Auto<std::vector<T>>& target) {
    target.reset();
    if (is_auto(field, node)) return;
    if (node.kind != YamlNode::Kind::kSequence) {
      const bool one_item = node.kind == YamlNode::Kind::kScalar && is_valid<T>(field, node.text);
      return refuse(node, concat(kind_name(node), " where a list is expected"), allowed(), one_item ? "[" + node.text + "]" : "");
    }
    std::vector<T> values;
    for (const YamlNode& item : node.children) {
      T value = 0;
      if (item.kind == YamlNode::Kind::kRefused) return;
      read(field, item, value);
      values.push_back(value);
    }
    if (!violations_.touch(path_)) target = values;
  }

  void read(const Field& field, const YamlNode& node, std::vector<std::string>& target) {
    if (node.kind != YamlNode::Kind::kSequence) return refuse(node, concat(kind_name(node), " where a list is expected"), allowed(), as_list(node));
    target.clear();  // of its default
    for (const YamlNode& item : node.children) {
      if (item.kind == YamlNode::Kind::kRefused) continue;
      if (item.kind != YamlNode::Kind::kScalar || item.text.empty())
        refuse(item, concat(item.kind == YamlNode::Kind::kScalar ? "empty text" : kind_name(item), " where a ", field.items, " is expected"),
               allowed());
      else
        target.push_back(item.text);
    }
    if (node.children.empty() && field.required) refuse(node, "an empty list", allowed());
  }

  template <class T>
  static bool is_valid(const Field& field, const std::string& text) {
    std::string rule, nearest;
    std::optional<double> value;
    if constexpr (std::is_same_v<T, int64_t>)
      value = parse_integer(text, rule, nearest);
    else
      value = parse_number(text, rule);
    return value && *value >= field.min && *value <= field.max && !(field.above_min && *value == field.min);
  }

  static std::string as_list(const YamlNode& node) { return node.kind == YamlNode::Kind::kScalar ? "[" + text_of(FieldValue(node.text)) + "]" : ""; }

  /// Suggests the nearest key of the same section, otherwise the nearest key of any section.
  std::string suggestion(const std::string& key) const {
    if (violations_.full()) return "";
    if (is_run_) {
      if (const std::string foreign = foreign_suggestion(prefix_ + key); !foreign.empty()) return foreign;
    }
    std::vector<std::string> paths;
    for (const FieldRow& row : known_.fields) paths.push_back(row.path);
    for (const SectionRow& row : known_.sections) paths.push_back(row.path);
    const auto distance = [&](std::string_view path, std::string_view text) {
      const bool sibling = path.starts_with(prefix_) && path.find('.', prefix_.size()) == path.npos;
      const std::string_view name = path.substr(path.rfind('.') + 1);
      // A key of another section must match more closely: one typo at most.
      return sibling ? edit_distance(text, name) : 1 + 2 * std::min(edit_distance(text, name), edit_distance(text, path));
    };
    const std::string best = nearest_word(key, paths, std::max<size_t>(2, key.size() / 3), distance);
    return best.empty() ? "" : "; did you mean " + best + "?";
  }

  const YamlNode* section_;
  Sources& sources_;
  Violations& violations_;
  const FieldTable& known_;
  const bool is_run_;  ///< the configuration of a run, of which other programs have their own
  std::string prefix_;
  std::string path_;
};

template <class Root>
void bind_root(const YamlNode& tree, const char* what, Root& config, Sources& sources, Violations& violations) {
  static const YamlNode kEmpty{.kind = YamlNode::Kind::kMapping};
  const YamlNode& root = tree.kind == YamlNode::Kind::kRefused || tree.kind == YamlNode::Kind::kNull ? kEmpty : tree;
  require_sections(root, what, sources, violations);
  const FieldTable known = table_of(config);
  Binder binder(root, sources, violations, known, std::is_same_v<Root, Config>);
  visit(binder, config);
  binder.refuse_unknown();
}

}  // namespace

void require_sections(const YamlNode& root, const char* what, const Sources& sources, Violations& violations) {
  using Kind = YamlNode::Kind;
  if (root.kind == Kind::kMapping || root.kind == Kind::kNull || root.kind == Kind::kRefused) return;
  violations.add({root.at, "", "", concat(what, " is a mapping of sections, not ", kind_name(root))});
  violations.raise(sources);
}

void bind(const YamlNode& root, Config& config, Sources& sources, Violations& violations) {
  bind_root(root, "a configuration file", config, sources, violations);
}

void bind(const YamlNode& root, ClusterConfig& cluster, Sources& sources, Violations& violations) {
  bind_root(root, "a cluster file", cluster, sources, violations);
}

void bind(const YamlNode& root, SweepConfig& sweep, Sources& sources, Violations& violations) {
  bind_root(root, "a sweep file", sweep, sources, violations);
}

std::optional<double> decimal_number(const std::string& text) {
  std::string rule;
  return parse_number(text, rule);
}

std::string key_suggestion(const std::string& key) {
  if (const std::string foreign = foreign_suggestion(key); !foreign.empty()) return foreign;
  std::vector<std::string> paths;
  for (const FieldRow& row : table_of(Config{}).fields) paths.push_back(row.path);
  // A key without its sections is as good as the whole path.
  const auto distance = [](std::string_view path, std::string_view text) {
    return std::min(edit_distance(path, text), 1 + edit_distance(path.substr(path.rfind('.') + 1), text.substr(text.rfind('.') + 1)));
  };
  const std::string best = nearest_word(key, paths, std::max<size_t>(2, key.size() / 4), distance);
  return best.empty() ? "" : "; did you mean " + best + "?";
}

bool put(YamlNode& root, const std::string& path, YamlNode value) {
  const size_t dot = path.find('.');
  const std::string key = path.substr(0, dot);
  auto child = std::find_if(root.children.begin(), root.children.end(), [&](const YamlNode& c) { return c.key == key; });
  if (child == root.children.end()) {
    YamlNode section{.kind = YamlNode::Kind::kMapping, .at = value.at, .key = key, .key_at = value.key_at};
    child = root.children.insert(root.children.end(), std::move(section));
  }
  if (dot == path.npos) {
    value.key = key;
    *child = std::move(value);
    return true;
  }
  if (child->kind == YamlNode::Kind::kNull) child->kind = YamlNode::Kind::kMapping;  // `training:` with nothing below it
  return child->kind == YamlNode::Kind::kMapping && put(*child, path.substr(dot + 1), std::move(value));
}

}  // namespace trireme
