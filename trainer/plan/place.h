#pragma once
// The machines that a plan is for: named, or assumed.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"

namespace trireme {

struct Place {
  ClusterConfig cluster;
  std::string source;                                   ///< "cluster.yaml", or what was assumed
  bool as_many_nodes = false, as_many_devices = false;  ///< as the layout needs, of nodes and on a node: nobody said how many
};

/// A cluster file or a built-in type, with `sets` laid over it. Errors: those of load_cluster.
Place named_place(const std::string& file_or_type, const std::vector<std::string>& sets);

/// Where nothing is named: H100 where run.device asks for GPUs or this machine has some, else this machine's CPU, for as many ranks as somebody might
/// start there. `config` is resolved.   Errors: ConfigError for more ranks.
Place assumed_place(const Config& config, const std::vector<std::string>& sets);

/// Nodes as --nodes says (a number, or "auto": as many as the ranks need), or as the place leaves open. Ranks, where known and `share` is set, share
/// the cores of a CPU machine, however many they are. Errors: ConfigError where the ranks do not fill nodes.
void settle_nodes(Place& place, const std::optional<std::string>& nodes, std::optional<int64_t> ranks, bool share);

/// The configuration's layout on these devices; nothing where it is made for another number of them and `needed` is false.
/// Errors: ConfigError where it is needed; those of resolve().
std::optional<Config> layout_on(const LoadedConfig& loaded, const Place& place, bool needed);

}  // namespace trireme
