#pragma once
// Resident memory of this process, as the kernel counts it: all that a run takes, libraries' buffers included, which no arena sees.
#include <cstdint>

namespace trireme::bench {

int64_t resident_bytes();
int64_t peak_resident_bytes();  ///< since the process began, or since settle_resident
/// Gives memory that is free back to the system and starts the peak again from here. False where the kernel does not let a process do so.
bool settle_resident();

}  // namespace trireme::bench
