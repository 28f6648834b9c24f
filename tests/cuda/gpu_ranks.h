#pragma once
// Rank threads, each with a simulated GPU.
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/nccl.h"

namespace trireme::test {

struct Carrier {
  bool nccl;  ///< false: through host memory
  int ranks_per_gpu;
  NcclOptions options = {};
  int communication_multiprocessors = 0;
  bool caching = true;  ///< of the arenas
};
constexpr Carrier kNccl{true, 1}, kStaged{false, 1}, kStagedOnOneGpu{false, 4};

/// Like run_ranks (thread_ranks.h), with a GPU and a poisoning arena for each rank. `world` communicates tensors of `ctx`'s device.
void run_gpu_ranks(int n, Carrier carrier, const std::function<void(Communicator& world, Context& ctx)>& body);

/// Runs `body` on ranks with NCCL, where every rank must fail. Returns the ranks' error messages.
std::vector<std::string> nccl_errors_of(int n, const std::function<void(Communicator& world, Context& ctx)>& body);

/// A device tensor [count] F32 filled with `value`.
Tensor filled(Context& ctx, int64_t count, float value);
/// True if all elements equal `value`. Waits for the compute stream only.
bool all_are(Context& ctx, const Tensor& tensor, float value);

bool contains(const std::string& text, const std::string& part);

}  // namespace trireme::test
