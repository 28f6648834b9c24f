#pragma once
#include <cstdint>

namespace trireme {

/// Raises this process's soft limit on open files to `wanted`, or to the hard limit where that is lower; never lowers it. A shell's usual soft limit is 1024,
/// and the hard one far above it. Returns the soft limit that holds afterwards.
uint64_t raise_open_file_limit(uint64_t wanted);

}  // namespace trireme
