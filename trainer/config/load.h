#pragma once
// Reads a configuration and checks everything that does not need the world size. trainer/layout/resolve.h does the rest.
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/report.h"

namespace trireme {

struct LoadedConfig {
  Config config;    ///< as written: `auto` is still nullopt
  Sources sources;  ///< where each value came from
};

/// Reads the YAML file at `path` with the files that it includes, and applies the overrides `sets` ("key.path=value") in order.
/// Errors: MissingFileError; IoError if it cannot be read; ConfigError with every violation, one a line, in the order of the file and of the sets.
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& sets = {});
/// The same from text, which may not include files; messages use `name` as the file name.
LoadedConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});
/// Call if other processes will read the file again. Errors: ConfigError if `path` exists and is not a regular file: a pipe can be read only once.
void check_read_again(const std::string& path);

}  // namespace trireme
