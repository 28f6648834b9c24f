#pragma once
// Output files named on the command line.
#include <string>
#include <vector>

namespace trireme {

struct OutputFile {
  std::string option, path;  ///< such as "--svg", and its argument
};

/// Checks the output files before any work is done. Errors: those of check_replaceable; IoError if the temporary file of an output exists;
/// ConfigError if an output is one of `inputs` or equals another output.
void check_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& inputs);

/// Writes texts[i] to files[i], each as a DurableFile; writes nothing if one of the files cannot be created. Errors: those of DurableFile.
void write_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& texts);

}  // namespace trireme
