// Entry point of libFuzzer.
#include <ctime>

#include "tests/fuzz/fuzz.h"

namespace {

/// CPU time of this thread: a busy machine must not look like a slow reader.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double start = cpu_seconds();
  trireme::fuzz::accepts({reinterpret_cast<const char*>(data), size});
  trireme::fuzz::require(cpu_seconds() - start < 1.0, "the reader takes less than a second");
  return 0;
}
