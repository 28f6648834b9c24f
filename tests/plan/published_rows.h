#pragma once
// Reads published training runs as configurations and clusters. A file of rows has one JSON object per line, after "- "; other lines are ignored.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme::published {

struct Run {
  std::string id;
  std::string source;  ///< short: "llm-foundry A100"
  std::string table;   ///< the part of the document whose runs were made together: "TorchTitan paper (arXiv 2410.06511 v2) Table 1"
  Config config;       ///< resolved
  /// Where the authors tuned the micro-batch size and do not print it: the configurations from which they chose, of which `config` is forecast fastest.
  std::vector<Config> tuned = {};
  ClusterConfig cluster;  ///< resolved
  std::optional<double> step_seconds;
  std::optional<double> memory_bytes;  ///< highest peak of any rank
  bool out_of_memory = false;
};

struct Rows {
  std::vector<Run> runs;
  std::vector<std::string> left_out;  ///< "id: reason why Trireme has no such configuration"
};

/// Reads every train_step and memory_oom row of the file. `tunes`: micro-batch sizes that a row omits are those of the fastest forecast instead of 1, where
/// the authors say that they tuned them. Configuration and cluster do not depend on a row's result.
Rows read_rows(const std::string& path, bool tunes = true);

std::vector<double> sizes_of(std::vector<double> errors);  ///< absolute values

/// The smallest value that at least `share` of the values do not exceed.
double quantile(std::vector<double> values, double share);

/// A row of a table of errors on stdout: number of runs, median and 90th percentile of their sizes, and median with sign, in percent. The first
/// column has `width` characters. Prints no row without errors.
void print_header(const std::string& title, int width);
void print_errors(const std::string& name, int width, const std::vector<double>& errors);

}  // namespace trireme::published
