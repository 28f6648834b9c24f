#pragma once
#include "kernels/core/gpu.h"
#include "tests/support/parity.h"

namespace trireme::test {

/// parity.h's run with every rank a thread. `ranks_per_gpu` 1: each rank has a GPU of its own and NCCL; more: they share GPUs and talk through host memory.
/// Fresh device memory, and memory used again, holds NaN.
RunRecord train_on_gpus(const Config& config, int steps, int ranks_per_gpu = 1);

}  // namespace trireme::test
