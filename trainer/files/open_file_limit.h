#pragma once
#include <cstdint>

namespace trireme {

/// Raises this process's soft limit on open files to `wanted`, or to the hard limit if that is lower; never lowers it. The usual soft limit of a
/// shell is 1024, far below the hard limit. Returns the new soft limit.
uint64_t raise_open_file_limit(uint64_t wanted);

}  // namespace trireme
