#pragma once
// The cluster that `trireme plan` forecasts for: named by the user or assumed.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"

namespace trireme {

struct Place {
  ClusterConfig cluster;
  std::string source;                                   ///< "cluster.yaml", or a description of what was assumed
  bool as_many_nodes = false, as_many_devices = false;  ///< number of nodes, or of devices per node, was not given and follows from the layout
};

/// A cluster file or a built-in type, overridden by `sets`. Errors: those of load_cluster.
Place named_place(const std::string& file_or_type, const std::vector<std::string>& sets);

/// The cluster if none is named: H100 if run.device is cuda, or auto on a machine with GPUs; otherwise this machine's CPU. `config` is resolved.
/// Errors: ConfigError if the CPU is assumed and the layout has more than max(32, usable cores) ranks.
Place assumed_place(const Config& config, const std::vector<std::string>& sets);

/// Sets the number of nodes from --nodes (a number, or "auto": what the ranks need), or from the ranks if `place` leaves it open. If `share` is set
/// and the number of ranks is known, any number of ranks share the cores of a CPU machine. Errors: ConfigError if the ranks do not fill the nodes.
void resolve_nodes(Place& place, const std::optional<std::string>& nodes, std::optional<int64_t> ranks, bool share);

/// Refuses keys of the two that exclude each other in every layout. Each command that reads a cluster calls it before any forecast; `cluster` is
/// resolved. Errors: ConfigError.
void check_against_cluster(const Config& config, const ClusterConfig& cluster);

/// Sets run.device to the kind of the cluster's devices, because the run to forecast is one on that cluster. auto stays where it means CPUs.
void set_device(Config& config, const ClusterConfig& cluster);

/// Whether a search takes the configuration: its own layout is legal or, with parallel.data auto, legal on these devices or on one data rank.
bool allows_search(const Config& config, int64_t devices);

/// The configuration resolved for these devices. If its layout needs a different number of devices, or with parallel.data auto is not legal on them:
/// nullopt, or ConfigError if `needed`.
/// Other errors: those of resolve().
std::optional<Config> layout_on(const LoadedConfig& loaded, const Place& place, bool needed);

}  // namespace trireme
