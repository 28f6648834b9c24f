#pragma once
// From a file to a configuration: all is checked that needs no world size. trainer/layout/resolve.h does the rest.
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/report.h"

namespace trireme {

struct LoadedConfig {
  Config config;    ///< as written: `auto` is still nullopt
  Sources sources;  ///< where each value came from
};

/// Reads the YAML file at `path` and lays the `sets` ("key.path=value", in order) over it.
/// Errors: MissingFileError; IoError if it cannot be read; ConfigError with every violation, one a line, in the order of the file and of the sets.
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& sets = {});
/// The same from text; `name` stands for the file in messages.
LoadedConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});
/// To be called where other processes will read the file again. Errors: ConfigError for what exists and is not a regular file: a pipe can be read only once.
void check_read_again(const std::string& path);

}  // namespace trireme
