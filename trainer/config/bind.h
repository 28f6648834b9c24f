#pragma once
#include "trainer/config/cluster.h"
#include "trainer/config/yaml.h"

namespace trireme {

/// Assigns every value of the tree to its field and records its location in `sources`. Unknown keys (with a suggestion), missing required keys and
/// values of the wrong type are added to `violations`; their fields keep the default. Ranges are not checked here (see check.h).
void bind(const YamlNode& root, Config& config, Sources& sources, Violations& violations);
void bind(const YamlNode& root, ClusterConfig& cluster, Sources& sources, Violations& violations);

/// Errors: ConfigError unless `root`, the tree of `what` (e.g. "a configuration file"), is a mapping or empty.
void require_sections(const YamlNode& root, const char* what, const Sources& sources, Violations& violations);

/// Sets the node at the dotted `path` to `value`, creating missing sections. Returns false if a part of the path is a value, not a section.
[[nodiscard]] bool put(YamlNode& root, const std::string& path, YamlNode value);

}  // namespace trireme
