#pragma once
// Text of a YAML file and its --set overrides, for configurations and cluster files.
#include <string>
#include <vector>

#include "trainer/config/yaml.h"

namespace trireme {

/// The text of the file, cut after kMaxYamlBytes + 1 bytes. `what`: kind of the file in messages, e.g. "configuration file".
/// Errors: MissingFileError; IoError if it cannot be read.
std::string read_yaml_file(const std::string& path, const std::string& what);

/// Applies the overrides `sets` ("key.path=value") to the tree of a file in order. Fills sources.sets.
/// Errors: ConfigError for a malformed set; those of parse_yaml.
void apply_sets(YamlNode& root, const std::vector<std::string>& sets, Sources& sources, Violations& violations);

}  // namespace trireme
