// Preloaded into the binary: a slow disk, a host whose clock is wrong, and a rank that stops.
//   TRIREME_SHIM_FSYNC_MS      fsync and fdatasync take this many milliseconds longer
//   TRIREME_SHIM_CLOCK_AHEAD   CLOCK_REALTIME is this many seconds ahead, on the rank TRIREME_SHIM_RANK
//   TRIREME_SHIM_STOP=1        that rank stops at its first fsync
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

long number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atol(text);
}

bool is_chosen() {
  const char *rank = std::getenv("OMPI_COMM_WORLD_RANK"), *wanted = std::getenv("TRIREME_SHIM_RANK");
  return rank != nullptr && wanted != nullptr && std::strcmp(rank, wanted) == 0;
}

void delay() {
  if (number("TRIREME_SHIM_STOP") != 0 && is_chosen()) ::raise(SIGSTOP);
  const long milliseconds = number("TRIREME_SHIM_FSYNC_MS");
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000};
  if (milliseconds > 0) ::nanosleep(&time, nullptr);
}

long seconds_ahead() { return is_chosen() ? number("TRIREME_SHIM_CLOCK_AHEAD") : 0; }

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int file) {
  delay();
  return next<int(int)>("fsync")(file);
}

int fdatasync(int file) {
  delay();
  return next<int(int)>("fdatasync")(file);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const auto real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += seconds_ahead();
  return result;
}

}  // extern "C"
