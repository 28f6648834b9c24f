#pragma once
// Reads a YAML file and its --set overrides into one tree, for configurations and cluster files.
#include <string>
#include <vector>

#include "trainer/config/yaml.h"

namespace trireme {

/// The text of the file, cut after kMaxYamlBytes + 1 bytes. `what`: kind of the file in messages, e.g. "configuration file".
/// Errors: MissingFileError; IoError if it cannot be read.
std::string read_yaml_file(const std::string& path, const std::string& what);

/// The tree of `text` with the overrides `sets` ("key.path=value") applied in order. Fills sources.sets; the caller has set sources.file.
/// Errors: ConfigError for a malformed set; those of parse_yaml.
YamlNode read_tree(const std::string& text, const std::vector<std::string>& sets, Sources& sources, Violations& violations);

}  // namespace trireme
