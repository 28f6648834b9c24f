#pragma once
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `bench comm --algorithm`: collectives of our own beside the library's and beside their model.
struct AlgorithmOptions {
  std::vector<std::string> names;  ///< of CollectiveAlgorithm; "all": each of them
  std::vector<int64_t> sizes;      ///< bytes; empty: powers of four from 1 KiB to 64 MiB
  double seconds = 0.4;            ///< of each measurement
  int64_t rounds = 0;              ///< 0: three
  int64_t ranks = 2;
  bool threads = false;  ///< ranks are threads of this process
  bool lists = false;    ///< prints the steps of all ranks and measures nothing
  std::string output;    ///< empty: standard output
  bool json = false;
  bool oversubscribe = false;
};

/// Returns the exit code. Errors: ConfigError; those of the launcher.
int bench_algorithms(const AlgorithmOptions& options, const LaunchEnvironment& environment, const std::vector<std::string>& command_line);

}  // namespace trireme
