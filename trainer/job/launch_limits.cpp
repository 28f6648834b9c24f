#include "trainer/job/launch_limits.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/open_file_limit.h"

namespace trireme {

int max_ranks_per_host(int cores) {
  constexpr int kPerCore = 16, kAlways = 64;
  return std::max(kAlways, kPerCore * cores);
}

void check_ranks_of_host(int ranks, int cores, bool oversubscribe) {
  if (oversubscribe || ranks <= max_ranks_per_host(cores)) return;
  throw ConfigError(concat(counted(ranks, "rank"), " on a host with ", counted(cores, "usable core"), ": allowed at most ", max_ranks_per_host(cores),
                           ", or --oversubscribe to start them anyway"));
}

uint64_t files_of_launch(int ranks) {
  // At start-up mpirun 4.1 has five or six files open per rank plus about thirty; a rank has about twenty.
  return static_cast<uint64_t>(64 + 6 * ranks);
}

void make_room_for_files(int ranks) {
  const uint64_t needed = files_of_launch(ranks);  // a higher limit of the user is kept
  const uint64_t limit = raise_open_file_limit(needed);
  if (limit < needed)
    throw ConfigError(concat("the limit of ", limit, " open files (ulimit -Hn) is too low to start ", counted(ranks, "rank"),
                             " on this host; allowed at least ", needed));
}

}  // namespace trireme
