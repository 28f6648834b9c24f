#pragma once
// Per-host limits, checked before ranks are started.
#include <cstdint>

namespace trireme {

/// Maximum number of ranks on a host with `cores` cores without --oversubscribe.
int max_ranks_per_host(int cores);

/// Errors: ConfigError if a host would get more than max_ranks_per_host() ranks without `--oversubscribe`.
void check_ranks_of_host(int ranks, int cores, bool oversubscribe);

/// Open files that mpirun needs for `ranks` ranks on this host.
uint64_t files_of_launch(int ranks);

/// Raises this process's limit on open files, which mpirun and the ranks inherit, to what mpirun needs for `ranks` ranks on this host: mpirun hangs
/// when it reaches the limit. Errors: ConfigError if the hard limit is too low.
void make_room_for_files(int ranks);

}  // namespace trireme
