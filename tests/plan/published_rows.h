#pragma once
// Published training runs as configurations and clusters that a forecast takes. A file of rows has one JSON object a line, behind "- "; other lines
// are left out.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme::published {

struct Run {
  std::string id;
  std::string source;     ///< short: "llm-foundry A100"
  Config config;          ///< resolved
  ClusterConfig cluster;  ///< resolved
  std::optional<double> step_seconds;
  std::optional<double> memory_bytes;  ///< of the rank that takes most
  bool out_of_memory = false;
};

struct Rows {
  std::vector<Run> runs;
  std::vector<std::string> left_out;  ///< "id: why it is no configuration of Trireme"
};

/// Every train_step and memory_oom row of the file. Nothing here depends on a row's result.
Rows read_rows(const std::string& path);

}  // namespace trireme::published
