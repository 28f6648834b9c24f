#pragma once
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/files/durable_file.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// A cluster file that receives measured link figures. All other figures of an existing file are kept; its comments are not.
class LinkFile {
 public:
  /// Reads the file if it exists. Errors: those of load_cluster; IoError if it cannot be written.
  explicit LinkFile(const std::string& path);

  /// Writes the ranges of `link`: between hosts if the `ranks` ranks are on several, with `local_ranks` on this one. A new file describes this machine with
  /// the built-in figures of its kind; `gpu`: the driver's name of the GPU, empty on a CPU. Errors: IoError; ConfigError for a GPU that is not built in.
  void write(const LinkConfig& link, const std::string& gpu, int ranks, int local_ranks);

 private:
  std::string path_;
  bool exists_ = false;
  ClusterConfig cluster_;
};

/// Errors: ConfigError if ranks share the cores of this host: they would measure how the kernel shares the cores.
void refuse_shared_cores(const Config& config, const RankPlace& place);

}  // namespace trireme
