#pragma once
// A configuration or a cluster as a flat table with one row per key. Writing, the schema, `config explain` and the range checks iterate over it.
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/sweep.h"
#include "trainer/config/visit.h"

namespace trireme {

enum class FieldType : uint8_t { kBoolean, kInteger, kNumber, kText, kSwitchOrPath, kIntegerList, kNumberList, kTextList };

/// monostate: auto, or an optional key that is not set.
using FieldValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

struct FieldRow {
  std::string path;  ///< "parallel.tensor"
  Field field;
  FieldType type;
  FieldValue value;
};

struct SectionRow {
  std::string path;
  std::string doc;
};

struct FieldTable {
  std::vector<FieldRow> fields;      ///< in file order
  std::vector<SectionRow> sections;  ///< in file order, outer before inner
  const FieldRow& at(std::string_view path) const;
};

FieldTable table_of(const Config& config);
FieldTable table_of(const ClusterConfig& cluster);
FieldTable table_of(const SweepConfig& sweep);

/// Resets every key with one of `aspects` to its default.
void reset(Config& config, std::initializer_list<Aspect> aspects);

/// Text for messages, which this program reads back as the same value: shortest round-trip digits, quotes only where needed. monostate gives "auto".
std::string text_of(const FieldValue& value);
/// The value as YAML flow text, as written to a file, which every YAML parser reads as the same value (1.0e-05, not 1e-05); empty for keys that are
/// not written: optional keys that are not set, and keys without effect.
std::string written_value(const FieldRow& row);
/// A key whose written values differ between two configurations.
struct FieldDifference {
  FieldRow before, after;
  std::string from, to;  ///< as written_value gives them
};
std::vector<FieldDifference> differing_fields(const Config& a, const Config& b);  ///< in file order
/// "integer from 1 to 1024, or auto", "llama | gpt2", "list of paths".
std::string allowed_text(const Field& field, FieldType type);
/// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);
/// The word with the smallest distance(word, text), the first of several; empty if that is above `most`, or if the text is too long for a typo.
std::string nearest_word(std::string_view text, const std::vector<std::string>& words, size_t most = std::numeric_limits<size_t>::max(),
                         const std::function<size_t(std::string_view word, std::string_view text)>& distance = edit_distance);
/// True if the value is auto (field.auto_name in a file).
bool is_auto(const FieldRow& row);
/// The value as a user would write it: "auto" also for an empty automatic string, "" for an optional key that is not set.
std::string shown_value(const FieldRow& row);

}  // namespace trireme
