#pragma once
// The batch script of a job: a pure function of what the job needs and a template.
#include <optional>
#include <string>
#include <vector>

#include "trainer/submit/allocation.h"

namespace trireme::submit {

struct Job {
  Allocation allocation;
  std::string run_name;                    ///< run.name
  std::string working_directory;           ///< absolute; where the paths of the configuration begin
  std::string run_directory = {};          ///< absolute; of an array, with kArrayIndex
  std::string log_directory = {};          ///< absolute; where the log is written unless `output` is given
  std::vector<std::string> again = {};     ///< `command` of later tries, once the job has saved a checkpoint of its own; empty: the same
  std::vector<std::string> command = {};   ///< of the run, with kArrayIndex where it differs between the elements of an array
  std::optional<std::string> array = {};   ///< numbers of the elements, as sbatch reads them
  std::vector<std::string> after = {};     ///< ids of the jobs that must have succeeded before
  std::optional<std::string> output = {};  ///< file name of the log, with sbatch's patterns
  std::optional<std::string> account = {}, qos = {};
  int64_t requeues = 3;  ///< ends in a row without a new checkpoint that are followed by another try
  int64_t strikes = 2;   ///< failures of a node after which it is excluded
};

/// The template of scripts: text with placeholders such as {{command}}.
const std::string& default_template();
/// The names of all placeholders.
std::vector<std::string> placeholders();

/// Fills a template in. `name`: its file, for messages. Errors: ConfigError with file and line if it has an unknown placeholder, or lacks {{directives}}
/// or {{command}}; those of directive_value().
std::string batch_script(const Job& job, const std::string& text, const std::string& name);

}  // namespace trireme::submit
