// For builds without MPI: a world is one process. The ranks of `trireme verify` are threads and need none.
#include "parallel/comm/mpi.h"

#include <cstdlib>

#include "kernels/core/check.h"

namespace trireme {

void require_mpi() {
  throw ConfigError(
      "this build has no MPI, so it cannot run several ranks, --hosts or --restarts: allowed one rank without mpirun and srun; or install Open MPI "
      "or "
      "MPICH, then configure and build again");
}

MpiEnvironment::MpiEnvironment() { require_mpi(); }
MpiEnvironment::~MpiEnvironment() = default;
void MpiEnvironment::abort(int code) const { std::exit(code); }
std::unique_ptr<Communicator> MpiEnvironment::world(const MpiOptions& /*options*/) const { throw InternalError("this build has no MPI"); }

std::vector<std::string> mpi_transports() { return {}; }
std::string mpi_library_version() { return "no MPI: one rank, in one process"; }

}  // namespace trireme
