#pragma once
#include "kernels/core/gpu.h"
#include "tests/support/parity.h"

namespace trireme::test {

/// Like train of parity.h, with one thread per rank. `ranks_per_gpu` == 1: each rank has its own GPU and uses NCCL; otherwise ranks share GPUs and
/// communicate through host memory. Fresh and reused device memory contains NaN. `caching`: of the arenas of GPU memory.
RunRecord train_on_gpus(const Config& config, int steps, int ranks_per_gpu = 1, bool caching = true);

}  // namespace trireme::test
