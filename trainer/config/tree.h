#pragma once
// From a file and what is laid over it to one tree, for every kind of file that the strict reader reads.
#include <string>
#include <vector>

#include "trainer/config/yaml.h"

namespace trireme {

/// The text of the file, at most one byte more than the reader takes. `what` names its kind in messages: "configuration file".
/// Errors: MissingFileError; IoError if it cannot be read.
std::string read_yaml_file(const std::string& path, const std::string& what);

/// The tree of `text` with each of `sets` ("key.path=value", in order) in its place. sources.file is set; so is sources.sets.
/// Errors: ConfigError for a set of another form, and as parse_yaml.
YamlNode read_tree(const std::string& text, const std::vector<std::string>& sets, Sources& sources, Violations& violations);

}  // namespace trireme
