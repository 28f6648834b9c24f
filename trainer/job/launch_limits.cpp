#include "trainer/job/launch_limits.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/files/open_file_limit.h"

namespace trireme {

int most_ranks(int cores) {
  constexpr int kPerCore = 16, kAlways = 64;
  return std::max(kAlways, kPerCore * cores);
}

void check_ranks_of_host(int ranks, int cores, bool oversubscribe) {
  if (oversubscribe || ranks <= most_ranks(cores)) return;
  throw ConfigError(concat(ranks, " ranks on a host with ", cores, cores == 1 ? " usable core" : " usable cores", ": allowed at most ",
                           most_ranks(cores), ", or --oversubscribe to start them anyway"));
}

void make_room_for_files(int ranks) {
  // While it starts them, mpirun 4.1 has five or six open for each rank and some thirty more; a rank has some twenty. What is above stays as the user has it.
  const auto needed = static_cast<uint64_t>(64 + 6 * ranks);
  const uint64_t limit = raise_open_file_limit(needed);
  if (limit < needed)
    throw ConfigError(concat("at most ", limit, " open files (ulimit -Hn) are too few to start ", ranks, ranks == 1 ? " rank" : " ranks",
                             " on this host; allowed at least ", needed));
}

}  // namespace trireme
