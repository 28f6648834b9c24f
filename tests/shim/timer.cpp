// Preloaded into the binary: a library with a timer and a signal handler, like a profiler's. The handler only counts on which thread it runs.
// Other programs that inherit the preload, such as mpirun, are not affected.
//   TRIREME_SHIM_COUNTS   a file name to which the process id is appended. At exit the file receives one line:
//                         the number of calls on the thread named "signals" and on any other thread
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

std::atomic<long> expected = 0, elsewhere = 0;

void count(int /*signal*/) {
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  if (std::strcmp(name, "signals") == 0) {
    ++expected;
  } else if (expected > 0) {  // main() has begun
    ++elsewhere;
  }
}

struct Timer {
  Timer() {
    if (std::strcmp(program_invocation_short_name, "trireme") != 0) return;
    running = true;
    struct sigaction action {};
    action.sa_handler = count;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 500}, {0, 500}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Timer() {
    if (!running) return;
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    if (const char* counts = std::getenv("TRIREME_SHIM_COUNTS"))
      std::ofstream(counts + std::to_string(::getpid())) << expected << " " << elsewhere << "\n";
  }
  bool running = false;
} timer;

}  // namespace
