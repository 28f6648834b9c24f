#pragma once
// `include:` at the top level of a configuration file: other files give what the file itself leaves out.
#include "trainer/config/yaml.h"

namespace trireme {

inline constexpr size_t kMaxIncludeDepth = 8;    ///< files between the configuration and an included one, itself counted
inline constexpr size_t kMaxIncludedFiles = 64;  ///< files read for one configuration

/// Reads the files that `root`, the tree of the file sources.file, includes, and merges them into it: of a list a later file overrides an earlier one,
/// and the including file overrides all of them. Mappings merge key by key; lists and scalars are replaced. Fills sources.included.
/// Errors: those of read_yaml_file; ConfigError for a cycle, for too many files, and for anything but paths; those of parse_yaml.
void expand_includes(YamlNode& root, Sources& sources, Violations& violations);

}  // namespace trireme
