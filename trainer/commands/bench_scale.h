#pragma once
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

struct ScaleOptions {
  std::string config;
  std::vector<std::string> sets;
  int64_t ranks = 0;    ///< most ranks; 0: as many as do not share cores, or GPUs, at least twice the fewest
  int64_t threads = 1;  ///< of each rank
  int64_t steps = 5, warmup = 2, rounds = 3;
  std::string cluster;      ///< for the forecasts; empty: plan.cluster, or built-in figures
  std::string output, svg;  ///< files for the JSON object and the drawing; empty: none
  bool json = false, oversubscribe = false;
};

/// `bench scale CONFIG`: measures steps of the configuration on tensor x pipeline x 1, 2, 4, ... ranks of this machine or allocation, with the same batch
/// (strong) and with one in proportion (weak). Each rank has the same number of threads. Returns the exit code. Errors: those of load_config, launch and
/// load_cluster; ConfigError under mpirun or srun.
int bench_scale(const LaunchEnvironment& environment, const ScaleOptions& options);

}  // namespace trireme
