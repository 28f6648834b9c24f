#pragma once
// Files that a person names for what a command tells.
#include <string>
#include <vector>

namespace trireme {

struct OutputFile {
  std::string option, path;  ///< "--svg", and what was given to it
};

/// To be asked before any work. Errors: IoError where a file cannot be written by its name, or its
/// temporary file's name is taken; ConfigError where it is one of `inputs`, or two are one.
void check_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& inputs);

/// All `texts` or, where one cannot be created, none; each as DurableFile does. Errors: those of DurableFile.
void write_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& texts);

}  // namespace trireme
