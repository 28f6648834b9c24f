#include "trainer/config/fields.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/config/cluster_visit.h"
#include "trainer/config/sweep_visit.h"

namespace trireme {
namespace {

constexpr FieldType type_of(const bool&) { return FieldType::kBoolean; }
constexpr FieldType type_of(const int64_t&) { return FieldType::kInteger; }
constexpr FieldType type_of(const double&) { return FieldType::kNumber; }
constexpr FieldType type_of(const Auto<int64_t>&) { return FieldType::kInteger; }
constexpr FieldType type_of(const Auto<double>&) { return FieldType::kNumber; }
FieldType type_of(const std::string&) { return FieldType::kText; }
FieldType type_of(const std::optional<std::string>&) { return FieldType::kText; }
FieldType type_of(const SwitchOrPath&) { return FieldType::kSwitchOrPath; }
template <class E>
FieldType type_of(const OneOf<E>&) {
  return FieldType::kText;
}
FieldType type_of(const Auto<std::vector<int64_t>>&) { return FieldType::kIntegerList; }
FieldType type_of(const Auto<std::vector<double>>&) { return FieldType::kNumberList; }
FieldType type_of(const std::vector<std::string>&) { return FieldType::kTextList; }

template <class T>
FieldValue value_of(const T& value) {
  return value;
}
template <class T>
FieldValue value_of(const Auto<T>& value) {
  return value ? FieldValue(*value) : FieldValue();
}
template <class E>
FieldValue value_of(const OneOf<E>& value) {
  return value.text();
}
FieldValue value_of(const SwitchOrPath& value) {
  return std::visit([](const auto& one) { return FieldValue(one); }, value);
}

template <class T>
Field with_choices(const Field& field, const T&) {
  return field;
}
template <class E>
Field with_choices(Field field, const OneOf<E>&) {
  field.choices = OneOf<E>::names();
  return field;
}

class Flatten {
 public:
  explicit Flatten(FieldTable& table) : table_(table) {}

  template <class T>
  void operator()(const Field& field, T& value) {
    table_.fields.push_back({prefix_ + field.key, with_choices(field, value), type_of(value), value_of(value)});
  }
  template <class Section>
  void section(const char* key, const char* doc, Section& part) {
    const std::string outer = prefix_;
    table_.sections.push_back({outer + key, doc});
    prefix_ = outer + key + ".";
    visit(*this, part);
    prefix_ = outer;
  }

 private:
  FieldTable& table_;
  std::string prefix_;
};

/// Calls `each` with every field and its value.
template <class Each>
struct Fields {
  explicit Fields(Each function) : each(std::move(function)) {}  // clang before 17 deduces no template arguments of aggregates
  Each each;

  template <class T>
  void operator()(const Field& field, T& value) const {
    each(field, value);
  }
  template <class Section>
  void section(const char*, const char*, Section& part) const {
    visit(*this, part);
  }
};

template <class Root>
FieldTable flattened(Root copy) {
  FieldTable table;
  Flatten flatten(table);
  visit(flatten, copy);
  return table;
}

std::string number_text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

/// A number that every YAML parser reads as one: YAML 1.1 needs a point before the exponent and reads 1e-05 as text.
std::string yaml_number(double value) {
  std::string text = number_text(value);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

/// Plain if every YAML parser reads it as text; otherwise quoted.
std::string string_text(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto plain = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/'; };
  static const std::vector<std::string> words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "auto"};
  std::string lower = text;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  // In a number, only the letter e follows a digit from 1 to 9: 1f1b is text, 1e3 is not.
  const auto names = [&](char c) { return letter(c) && c != 'e' && c != 'E'; };
  const bool worded = !text.empty() && text[0] >= '1' && text[0] <= '9' && std::any_of(text.begin(), text.end(), names);
  if (!text.empty() && (letter(text[0]) || text[0] == '/' || worded) && std::all_of(text.begin(), text.end(), plain) &&
      std::find(words.begin(), words.end(), lower) == words.end())
    return text;
  std::string quoted = "\"";
  for (const char c : text) {
    constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') quoted += '\\';
    if (byte >= ' ' && byte != 0x7F)
      quoted += c;
    else
      quoted += {'\\', 'x', kHex[byte / 16], kHex[byte % 16]};
  }
  return quoted + '"';
}

template <class T, class Text>
std::string list_text(const std::vector<T>& items, Text&& text) {
  std::string out = "[";
  for (const T& item : items) out += (out.size() > 1 ? ", " : "") + text(item);
  return out + "]";
}

}  // namespace

const FieldRow& FieldTable::at(std::string_view path) const {
  const auto row = std::find_if(fields.begin(), fields.end(), [&](const FieldRow& r) { return r.path == path; });
  TRIREME_CHECK(row != fields.end(), path);
  return *row;
}

FieldTable table_of(const Config& config) { return flattened(config); }
FieldTable table_of(const ClusterConfig& cluster) { return flattened(cluster); }
FieldTable table_of(const SweepConfig& sweep) { return flattened(sweep); }

void reset(Config& config, std::initializer_list<Aspect> aspects) {
  Config fresh;
  std::vector<void*> defaults;
  const Fields collect{[&](const Field&, auto& value) { defaults.push_back(&value); }};
  visit(collect, fresh);
  size_t next = 0;
  const Fields copy{[&](const Field& field, auto& value) {
    const auto* const initial = static_cast<std::remove_reference_t<decltype(value)>*>(defaults[next++]);  // both visits have the same order
    if (std::find(aspects.begin(), aspects.end(), field.decides) != aspects.end()) value = *initial;
  }};
  visit(copy, config);
}

std::string text_of(const FieldValue& value) {
  struct Text {
    std::string operator()(std::monostate) const { return "auto"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number_text(v); }
    std::string operator()(const std::string& v) const { return string_text(v); }
    std::string operator()(const std::vector<int64_t>& v) const { return list_text(v, *this); }
    std::string operator()(const std::vector<double>& v) const { return list_text(v, *this); }
    std::string operator()(const std::vector<std::string>& v) const { return list_text(v, *this); }
  };
  return std::visit(Text{}, value);
}

bool is_auto(const FieldRow& row) {
  const auto* text = std::get_if<std::string>(&row.value);
  return row.field.auto_rule != nullptr &&
         (text != nullptr ? text->empty() || *text == row.field.auto_name : std::holds_alternative<std::monostate>(row.value));
}

std::string shown_value(const FieldRow& row) {
  if (is_auto(row)) return row.field.auto_name;
  if (std::holds_alternative<std::monostate>(row.value)) return "";
  const auto* text = std::get_if<std::string>(&row.value);
  return text == nullptr ? text_of(row.value) : *text;
}

std::string written_value(const FieldRow& row) {
  const bool unset = std::holds_alternative<std::monostate>(row.value) && row.field.auto_rule == nullptr;
  if (row.field.without_effect != nullptr || unset) return "";
  if (is_auto(row)) return row.field.auto_name;
  if (const auto* number = std::get_if<double>(&row.value)) return yaml_number(*number);
  if (const auto* list = std::get_if<std::vector<double>>(&row.value)) return list_text(*list, yaml_number);
  return text_of(row.value);
}

std::string allowed_text(const Field& field, FieldType type) {
  std::string range;
  if (field.min > -kUnbounded && field.max < kUnbounded)
    range = (field.above_min ? " above " : " from ") + number_text(field.min) + (field.below_max ? " to below " : " to ") +
            (type == FieldType::kNumber ? number_text(field.max) : std::to_string(static_cast<int64_t>(field.max)));
  else if (field.min > -kUnbounded)
    range = (field.above_min ? " above " : " from ") + number_text(field.min);
  const std::string or_auto = field.auto_rule ? concat(", or ", field.auto_name) : field.or_null ? ", or null" : "";
  switch (type) {
    case FieldType::kBoolean: return "true | false";
    case FieldType::kSwitchOrPath: return "true | false | path";
    case FieldType::kInteger: return "integer" + range + or_auto;
    case FieldType::kNumber: return "number" + range + or_auto;
    case FieldType::kIntegerList: return "list of integers" + range + or_auto;
    case FieldType::kNumberList: return "list of numbers" + range + or_auto;
    case FieldType::kTextList: return concat("list of ", field.items, "s, e.g. [a, b]");
    case FieldType::kText: break;
  }
  if (field.choices.empty()) return "text" + or_auto;
  std::string choices;
  for (const char* choice : field.choices) choices += (choices.empty() ? "" : " | ") + std::string(choice);
  return choices;
}

std::vector<FieldDifference> differing_fields(const Config& a, const Config& b) {
  const std::vector<FieldRow> before = table_of(a).fields, after = table_of(b).fields;  // the same keys in the same order
  std::vector<FieldDifference> found;
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string from = written_value(before[i]), to = written_value(after[i]);
    if (from != to) found.push_back({before[i], after[i], from, to});
  }
  return found;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string nearest_word(std::string_view text, const std::vector<std::string>& words, size_t most,
                         const std::function<size_t(std::string_view word, std::string_view text)>& distance) {
  constexpr size_t kLongestTypo = 64;  // bounds the time of a comparison
  if (text.size() > kLongestTypo) return "";
  std::string best;
  for (const std::string& word : words) {
    const size_t found = distance(word, text);
    if (found > most || (found == most && !best.empty())) continue;
    most = found;
    best = word;
  }
  return best;
}

}  // namespace trireme
