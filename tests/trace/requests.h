#pragma once
// Instructions of a warp from the accesses of its lanes.
#include "tests/trace/trace.h"

namespace cuda_trace {

struct Access {
  const void* place;
  uintptr_t address;
  uint32_t order;  ///< meetings (barriers, shuffles, ...) that the lane has passed
  Kind kind;
  uint8_t lane;
  uint8_t bytes;
};

/// Adds the requests of the accesses of one warp in one block, those of each lane in the order of its program. The lanes run apart in the simulation,
/// so the n-th access of each lane at one place between two meetings counts as one instruction of the warp. Sorts `accesses`.
void add_requests(std::vector<Access>& accesses, std::map<std::pair<const void*, Kind>, Traffic>& places);

}  // namespace cuda_trace
