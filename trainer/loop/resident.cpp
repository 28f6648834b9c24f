#include "trainer/loop/resident.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace trireme {
namespace {

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kib = 0; word == key && status >> kib) return kib << 10;
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS:"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

bool reset_peak_resident() {
  ::malloc_trim(0);
  const int clear = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (clear < 0) return false;
  const bool reset = ::write(clear, "5", 1) == 1;  // proc(5): resets the peak
  ::close(clear);
  return reset;
}

}  // namespace trireme
