// Preloaded into the binary: makes the main thread of one rank misbehave in the middle of training, as it enters an all-reduce.
//   TRIREME_SHIM_RANK     the rank of the world
//   TRIREME_SHIM_DO       abort | exit0 | hang (sleeps, its other threads live) | spin | stall3 (sleeps for three seconds, once)
//   TRIREME_SHIM_TRIGGER  a file: as soon as it exists
//   TRIREME_SHIM_TEXT     and, if set, holds this text, which it did not at some time before in this process
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool triggered() {
  std::ifstream file(variable("TRIREME_SHIM_TRIGGER"));
  if (!file) return false;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find(variable("TRIREME_SHIM_TEXT")) != std::string::npos;
}

void misbehave(const std::string& deed) {
  if (deed == "abort") std::abort();
  if (deed == "exit0") std::exit(0);
  if (deed == "hang")
    for (;;) ::pause();
  if (deed == "spin")
    for (volatile bool forever = true; forever;) {
    }
  if (deed == "stall3") ::sleep(3);
}

}  // namespace

/// Handles of this MPI are pointers; its header stays out of the tests.
extern "C" int MPI_Iallreduce(const void* in, void* out, int count, void* type, void* op, void* comm, void** request) {
  using Function = int (*)(const void*, void*, int, void*, void*, void*, void**);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "MPI_Iallreduce"));
  static const bool chosen = !variable("TRIREME_SHIM_RANK").empty() && variable("TRIREME_SHIM_RANK") == variable("OMPI_COMM_WORLD_RANK");
  static bool armed = variable("TRIREME_SHIM_TEXT").empty(), done = false;
  const bool now = chosen && !done && triggered();
  armed = armed || !now;
  if (now && armed) {
    done = true;
    misbehave(variable("TRIREME_SHIM_DO"));
  }
  return real(in, out, count, type, op, comm, request);
}
