#pragma once
// Rank threads with a simulated GPU each.
#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme::test {

struct Carrier {
  bool nccl;  ///< else through host memory
  int ranks_per_gpu;
};
constexpr Carrier kNccl{true, 1}, kStaged{false, 1}, kStagedOnOneGpu{false, 4};

/// run_ranks (thread_ranks.h), each rank with a GPU, whose arena poisons; `world` moves the tensors of `ctx`.
void run_gpu_ranks(int n, Carrier carrier, const std::function<void(Communicator& world, Context& ctx)>& body);

/// [count] F32, all `value`, on the device.
Tensor filled(Context& ctx, int64_t count, float value);
/// Whether all elements are `value`; waits for the compute stream, and for nothing else.
bool all_are(Context& ctx, const Tensor& tensor, float value);

bool contains(const std::string& text, const std::string& part);

}  // namespace trireme::test
