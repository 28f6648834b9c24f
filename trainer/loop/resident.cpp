#include "trainer/loop/resident.h"

#include <malloc.h>

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
  std::ofstream clear("/proc/self/clear_refs");
  return static_cast<bool>(clear << "5" << std::flush);  // proc(5): resets the peak
}

}  // namespace trireme
