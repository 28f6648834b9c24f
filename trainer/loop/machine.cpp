#include "trainer/loop/machine.h"

#include "kernels/ops/matmul.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/environment.h"

namespace trireme {
namespace {

bool has_gpu(const RankPlace& place, const Config& config) {
  try {
    return cuda::gpu_count() > place.local_rank / config.run.ranks_per_gpu;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

Machine::Machine(std::unique_ptr<Communicator> host, const RankPlace& place, Config& config) : world_(std::move(host)) {
  if (config.run.device == "auto") {
    const bool everywhere = all_reduce_scalar(*world_, has_gpu(place, config) ? 1 : 0, ReduceOp::kMin) > 0;
    config.run.device = everywhere ? "cuda" : "cpu";
  }
  if (config.run.device == "cuda") {
    agree(*world_, [&] {
      open_gpu(place, config);
      arena_ = std::make_unique<Arena>(*gpu_);
      ctx_ = {Device::kCuda, arena_.get(), 1, gpu_.get()};
      gemm_library(ctx_);  // a library that is missing is told of now
    });
    const bool nccl = config.run.ranks_per_gpu == 1 && all_reduce_scalar(*world_, nccl_available(nullptr) ? 1 : 0, ReduceOp::kMin) > 0;
    if (!nccl && world_->size() > 1 && config.kernels.cuda_graph)
      throw AgreedError(ExitCode::kUsage, "kernels.cuda_graph=true: needs NCCL between ranks, which is not on every host; allowed false",
                        world_->rank() == 0);
    world_ = nccl ? make_nccl_world(std::move(world_), *gpu_) : make_staged_world(std::move(world_), *gpu_);
  } else {
    const Device device = config.training.precision == "fp64" ? Device::kReference : Device::kCpu;
    arena_ = std::make_unique<Arena>(device);
    ctx_ = {device, arena_.get(), threads_per_rank(place.local_size), nullptr};
  }
}

Machine::~Machine() = default;

void Machine::open_gpu(const RankPlace& place, const Config& config) {
  const int found = cuda::gpu_count();
  const auto sharing = static_cast<int>(config.run.ranks_per_gpu);
  const int index = place.local_rank / sharing;
  if (index >= found)
    throw ConfigError(concat("run.device=cuda: ", place.local_size, " ranks on this host, ", sharing, " to a GPU, and ", found,
                             " GPUs; allowed: fewer ranks on each host, or run.ranks_per_gpu ", (place.local_size + found - 1) / found,
                             " (slow: for tests)"));
  gpu_ = std::make_unique<cuda::Gpu>(
      index,
      cuda::GpuOptions{config.kernels.tf32, config.kernels.attention == "builtin" ? cuda::AttentionEngine::kBuiltin : cuda::AttentionEngine::kAuto});
}

}  // namespace trireme
