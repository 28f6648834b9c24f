// Preloaded into the binary: makes the main thread of one rank inject_fault in the middle of training, as it enters an all-reduce.
//   TRIREME_SHIM_RANK     the world rank that misbehaves
//   TRIREME_SHIM_DO       abort | exit0 | hang (sleeps, other threads continue) | spin | stall3 (sleeps for three seconds, once)
//   TRIREME_SHIM_TRIGGER  a file: the rank misbehaves as soon as it exists
//   TRIREME_SHIM_TEXT     if set, the file must also contain this text, and must not have done so at an earlier all-reduce of this process
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

void inject_fault(const std::string& action) {
  if (action == "abort") std::abort();
  if (action == "exit0") std::exit(0);
  if (action == "hang")
    for (;;) ::pause();
  if (action == "spin")
    for (volatile bool forever = true; forever;) {
    }
  if (action == "stall3") ::sleep(3);
}

}  // namespace

/// Open MPI's handles are pointers, so void* avoids including its header in the tests.
extern "C" int MPI_Iallreduce(const void* in, void* out, int count, void* type, void* op, void* comm, void** request) {
  using Function = int (*)(const void*, void*, int, void*, void*, void*, void**);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "MPI_Iallreduce"));
  static const bool chosen = !variable("TRIREME_SHIM_RANK").empty() && variable("TRIREME_SHIM_RANK") == variable("OMPI_COMM_WORLD_RANK");
  static bool armed = variable("TRIREME_SHIM_TEXT").empty(), done = false;
  const bool now = chosen && !done && triggered();
  armed = armed || !now;
  if (now && armed) {
    done = true;
    inject_fault(variable("TRIREME_SHIM_DO"));
  }
  return real(in, out, count, type, op, comm, request);
}
