#include "tests/cuda/gpu_ranks.h"

#include "kernels/core/gpu.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

namespace trireme::test {

void run_gpu_ranks(int n, Carrier carrier, const std::function<void(Communicator& world, Context& ctx)>& body) {
  run_ranks(n, [&](Communicator& threads) {
    cuda::Gpu gpu(threads.rank() / carrier.ranks_per_gpu, {.communication_multiprocessors = carrier.communication_multiprocessors});
    Arena arena(gpu, true, carrier.caching);
    Context ctx{Device::kCuda, &arena, 1, &gpu};
    auto host = whole_world(threads);
    const auto world = carrier.nccl ? make_nccl_world(std::move(host), gpu, carrier.options) : make_staged_world(std::move(host), gpu);
    body(*world, ctx);
    gpu.synchronize();
  });
}

/// Runs `body` on ranks with NCCL, where every rank must fail. Returns the ranks' error messages.
std::vector<std::string> nccl_errors_of(int n, const std::function<void(Communicator& world, Context& ctx)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  CHECK_THROWS_AS(run_gpu_ranks(n, kNccl,
                                [&](Communicator& world, Context& ctx) {
                                  try {
                                    body(world, ctx);
                                  } catch (const Error& error) {
                                    errors[static_cast<size_t>(world.rank())] = error.what();
                                    throw;
                                  }
                                }),
                  Error);
  for (const std::string& error : errors) CHECK_FALSE(error.empty());
  return errors;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Tensor filled(Context& ctx, int64_t count, float value) {
  const Tensor host = host_tensor({count}, DType::kF32), device = Tensor::empty(ctx, {count}, DType::kF32, MemoryCategory::kCommunication);
  for (int64_t i = 0; i < count; ++i) host.data<float>()[i] = value;
  from_host(ctx, host, device);
  return device;
}

bool all_are(Context& ctx, const Tensor& tensor, float value) {
  const Tensor host = to_host(ctx, tensor);
  for (int64_t i = 0; i < host.numel(); ++i)
    if (host.data<float>()[i] != value) return false;
  return true;
}

}  // namespace trireme::test
