#include "trainer/loop/machine.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "kernels/core/counted.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"

namespace trireme {
namespace {

constexpr int kNone = -1;

/// Index of this rank's GPU among the visible ones: by local rank, or 0 if the launcher shows each rank a different single GPU. kNone: too few GPUs.
/// Collective.
int gpu_of(Communicator& world, const RankPlace& place, int found, int64_t ranks_per_gpu) {
  const std::string mine = found == 1 ? concat(host_name(), " ", cuda::gpu_properties(0).pci) : "";
  const std::vector<std::string> seen = all_gather_strings(world, mine);
  const auto others = std::count(seen.begin(), seen.end(), mine);
  const bool own = found == 1 && others <= ranks_per_gpu;
  const auto index = static_cast<int>(place.local_rank / ranks_per_gpu);
  return own ? 0 : index < found ? index : kNone;
}

/// Why the first rank without NCCL cannot use it; empty: all ranks can. Collective.
std::string nccl_missing(Communicator& world) {
  std::string why;
  nccl_available(&why);
  for (const std::string& reason : all_gather_strings(world, why))
    if (!reason.empty()) return reason;
  return "";
}

/// The instruction set of the run: ranks with copies of the same state must round identically. Collective.
Isa isa_of(Communicator& world, const std::string& wanted) {
  const auto best = static_cast<Isa>(all_reduce_scalar(world, static_cast<double>(best_isa()), ReduceOp::kMin));
  const Isa isa = wanted == "auto" ? best : parse_isa(wanted).value();
  if (isa > best)
    throw AgreedError(ExitCode::kUsage,
                      concat("kernels.cpu_isa=", wanted, ": not supported by every CPU of this job; allowed auto, or up to ", name_of(best)),
                      world.rank() == 0);
  return isa;
}

}  // namespace

int usable_gpus() {
  try {
    return cuda::gpu_count();
  } catch (const ConfigError&) {
    return 0;
  }
}

Machine::Machine(std::unique_ptr<Communicator> host, const RankPlace& place, Config& config) : world_(std::move(host)) {
  const bool reports = world_->rank() == 0;
  const int found = config.run.device == "cpu" ? 0 : usable_gpus();
  const int index = config.run.device == "cpu" ? kNone : gpu_of(*world_, place, found, config.run.ranks_per_gpu);
  if (config.run.device == "auto") {
    const double with = all_reduce_scalar(*world_, index != kNone ? 1 : 0, ReduceOp::kSum);
    config.run.device = with == world_->size() ? "cuda" : "cpu";
    if (with > 0 && with < world_->size() && reports)
      std::cerr << "warning: only " << with << " of " << world_->size() << " ranks have a GPU: all ranks use CPUs\n";
  }
  if (config.run.device == "cuda") {
    collectively(*world_, [&] {
      open_gpu(place, index, config);
      arena_ = std::make_unique<Arena>(*gpu_);
      ctx_ = {Device::kCuda, arena_.get(), 1, gpu_.get()};
      gemm_library(ctx_);  // reports a missing library now
    });
    const bool shared = config.run.ranks_per_gpu > 1;
    const std::string missing = shared || world_->size() == 1 ? "" : nccl_missing(*world_);
    if (!missing.empty() && config.kernels.cuda_graph)
      throw AgreedError(ExitCode::kUsage, "kernels.cuda_graph=true: needs NCCL between ranks; allowed false: " + missing, reports);
    if (!missing.empty() && reports) std::cerr << "warning: ranks communicate through host memory, which is slow: " << missing << "\n";
    world_ = shared || !missing.empty() ? make_staged_world(std::move(world_), *gpu_) : make_nccl_world(std::move(world_), *gpu_);
  } else {
    const Device device = config.training.precision == "fp64" ? Device::kReference : Device::kCpu;
    arena_ = std::make_unique<Arena>(device);
    ctx_ = {device, arena_.get(), threads_per_rank(place.local_size, place.threads), nullptr, isa_of(*world_, config.kernels.cpu_isa)};
    limit_gemm_library(ctx_);
  }
}

Machine::~Machine() = default;

void Machine::open_gpu(const RankPlace& place, int index, const Config& config) {
  const int found = cuda::gpu_count();  // throws with the reason if there is none
  if (index == kNone)
    throw ConfigError(concat("run.device=cuda: ", counted(place.local_size, "rank"), " on this host, ", config.run.ranks_per_gpu, " per GPU, but ",
                             counted(found, "GPU"), "; allowed: fewer ranks per host, or run.ranks_per_gpu ", (place.local_size + found - 1) / found,
                             " (slow, for tests)"));
  gpu_ = std::make_unique<cuda::Gpu>(index, cuda::GpuOptions{config.kernels.tf32});
}

}  // namespace trireme
