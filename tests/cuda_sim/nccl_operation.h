#pragma once
// The operations that a part puts on its stream.
#include <cuda_runtime_api.h>

#include <memory>

#include "tests/cuda_sim/nccl_order.h"

namespace cuda_sim::nccl {

/// Issues the part and queues it. If the stream is being captured, each launch of the graph does so instead.
cudaError_t enqueue(cudaStream_t stream, const std::shared_ptr<Part>& part);

}  // namespace cuda_sim::nccl
