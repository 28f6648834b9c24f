#pragma once
#include <optional>
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/config/sweep.h"
#include "trainer/config/yaml.h"

namespace trireme {

/// Assigns every value of the tree to its field and records its location in `sources`. Unknown keys (with a suggestion), missing required keys and
/// values of the wrong type are added to `violations`; their fields keep the default. Ranges are not checked here (see check.h).
void bind(const YamlNode& root, Config& config, Sources& sources, Violations& violations);
void bind(const YamlNode& root, ClusterConfig& cluster, Sources& sources, Violations& violations);
void bind(const YamlNode& root, SweepConfig& sweep, Sources& sources, Violations& violations);

/// The double that `text` is in plain decimal digits; nullopt for any other text, and outside the range of a double.
std::optional<double> decimal_number(const std::string& text);

/// The nearest key of a configuration, for messages: "; did you mean training.steps?"; empty if none is near.
std::string key_suggestion(const std::string& key);

/// Errors: ConfigError unless `root`, the tree of `what` (e.g. "a configuration file"), is a mapping or empty.
void require_sections(const YamlNode& root, const char* what, const Sources& sources, Violations& violations);

/// Sets the node at the dotted `path` to `value`, creating missing sections. Returns false if a part of the path is a value, not a section.
[[nodiscard]] bool put(YamlNode& root, const std::string& path, YamlNode value);

}  // namespace trireme
