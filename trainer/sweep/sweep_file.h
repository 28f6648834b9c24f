#pragma once
// Reads the file of a sweep. Everything that a sweep does is a function of this file, of the base configuration and of what its runs have left behind.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/report.h"
#include "trainer/config/sweep.h"

namespace trireme::sweep {

/// A key of the run configuration with a value, as YAML text.
struct Setting {
  std::string key;
  std::string value;
  Location at = {};
  bool operator==(const Setting& other) const { return key == other.key && value == other.value; }
};

struct Axis {
  enum class Kind : uint8_t { kValues, kUniform, kLogUniform, kChoice };
  std::string key;
  Kind kind = Kind::kValues;
  bool log = false;                  ///< its values are spread evenly over a logarithmic axis
  bool integer = false;              ///< the key takes integers only
  std::vector<Setting> values = {};  ///< kValues, kChoice
  double from = 0, to = 0;           ///< kUniform, kLogUniform
  Location at = {};

  bool random() const { return kind != Kind::kValues; }
};

struct SweepFile {
  SweepConfig config;
  std::string path;            ///< of the file
  std::string base;            ///< path of the base configuration
  std::string directory;       ///< of the sweep
  std::vector<Setting> fixed;  ///< `set`; of a range test also what makes it one
  std::vector<Axis> axes;      ///< in file order; empty for a range test
  Sources sources;             ///< for messages
};

/// Errors: MissingFileError; IoError; ConfigError with every violation, one a line, in the order of the file.
SweepFile load_sweep(const std::string& path);
/// The same from text; `path` is used in messages and as the place of the file.
SweepFile parse_sweep(const std::string& text, const std::string& path);

/// A number as YAML text that reads back as the same value; `integer`: rounded.
std::string setting_text(double value, bool integer);

}  // namespace trireme::sweep
