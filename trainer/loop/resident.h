#pragma once
// Resident memory of this process, as counted by the kernel. Includes library buffers, which arenas do not count.
#include <cstdint>

namespace trireme {

int64_t resident_bytes();
int64_t peak_resident_bytes();  ///< since the start of the process, or the last reset_peak_resident
/// Returns free memory to the system and resets the peak. Returns false if the kernel does not permit a reset.
bool reset_peak_resident();

}  // namespace trireme
