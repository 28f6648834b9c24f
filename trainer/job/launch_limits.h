#pragma once
// What one host can bear, asked before a rank is started on it.

namespace trireme {

/// The most ranks of a host of `cores` cores that are started without a second thought.
int most_ranks(int cores);

/// Errors: ConfigError where a host would get more than most_ranks() and nobody has said `--oversubscribe`.
void check_ranks_of_host(int ranks, int cores, bool oversubscribe);

/// Raises this process's limit on open files, which mpirun and the ranks inherit, to what mpirun needs for `ranks` ranks of this host: where it meets the
/// limit it hangs. Errors: ConfigError where the hard limit is lower.
void make_room_for_files(int ranks);

}  // namespace trireme
