#pragma once
// Reads the sections `set` and `axes` of a sweep file.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/fields.h"
#include "trainer/config/yaml.h"
#include "trainer/sweep/sweep_file.h"

namespace trireme::sweep {

/// Adds what is wrong to `violations`, at its position. Whether a configuration accepts the values is not checked here.
class AxisReader {
 public:
  explicit AxisReader(Violations& violations) : violations_(violations), known_(table_of(Config{})) {}

  void read_fixed(const YamlNode& node, std::vector<Setting>& out);
  void read_axis(const YamlNode& node, std::vector<Axis>& out);

 private:
  void refuse(const YamlNode& node, const std::string& rule, const std::string& allowed = {});
  void refuse_part(const YamlNode& node, const char* part, const std::string& rule, const std::string& allowed = {});
  const FieldRow* known_key(const YamlNode& node, const char* section);
  std::optional<Setting> value_of(const YamlNode& node);
  void read_values(const YamlNode& list, std::vector<Setting>& out);
  std::optional<double> number(const YamlNode& axis, const char* part);
  bool read_ends(const YamlNode& node, Axis& axis);
  void read_grid(const YamlNode& node, Axis& axis);
  void read_random(const YamlNode& node, Axis& axis);
  void refuse_other_parts(const YamlNode& node, const std::vector<std::string>& known);

  Violations& violations_;
  FieldTable known_;
  std::string path_;  ///< "axes.training.steps": the axis that is being read
};

}  // namespace trireme::sweep
