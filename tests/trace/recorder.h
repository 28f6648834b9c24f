#pragma once
#include <cstddef>

namespace cuda_trace {

/// One load or store of the running thread by the code before `place`. Ignored in host code, on stacks, and while nothing is recorded.
void record(const void* place, const void* address, size_t bytes, bool is_write);

}  // namespace cuda_trace
