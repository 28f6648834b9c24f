#include "tests/support/places.h"

namespace trireme::test {

std::string in_checkout(const std::string& path) { return path.empty() ? TRIREME_SOURCE_DIR : TRIREME_SOURCE_DIR "/" + path; }

const char* trireme_program() { return TRIREME_BINARY; }
const char* faulty_train_program() { return TRIREME_FAULTY_TRAIN; }
const char* comm_mpi_program() { return TRIREME_COMM_MPI_TEST; }
std::string shim(const std::string& name) { return TRIREME_SHIMS "/libshim_" + name + ".so"; }

}  // namespace trireme::test
