#include "trainer/machine/machine.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <sstream>

#include "kernels/core/counted.h"
#include "kernels/core/gpu_uuid.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "trainer/config/check.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/collectives.h"
#include "trainer/machine/encryption.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

constexpr int kNone = -1;

/// Index of this rank's GPU among the visible ones: by local rank, or 0 if the launcher shows each rank a different single GPU. kNone: too few GPUs.
/// A MIG instance counts as a GPU. Collective.
int gpu_of(Communicator& world, const RankPlace& place, int found, int64_t ranks_per_gpu) {
  const std::string mine = found == 1 ? concat(host_name(), " ", cuda::gpu_uuid(0)) : "";
  const std::vector<std::string> seen = all_gather_strings(world, mine);
  const auto others = std::count(seen.begin(), seen.end(), mine);
  const bool own = found == 1 && others <= ranks_per_gpu;
  const auto index = static_cast<int>(place.local_rank / ranks_per_gpu);
  return own ? 0 : index < found ? index : kNone;
}

/// The first of the ranks' texts that is not empty. Collective.
std::string first_of(Communicator& world, const std::string& mine) {
  for (const std::string& text : all_gather_strings(world, mine))
    if (!text.empty()) return text;
  return "";
}

/// Why the ranks cannot use NCCL; empty: all ranks can. Each has a GPU or MIG instance of its own. Collective.
std::string nccl_missing(Communicator& world, const cuda::Gpu& gpu) {
  const std::string mine = concat(host_name(), " ", gpu.properties().pci);
  const std::vector<std::string> addresses = all_gather_strings(world, mine);
  std::string why;
  if (std::count(addresses.begin(), addresses.end(), mine) > 1)
    why = concat("MIG instances of one GPU (", mine, ") cannot communicate through NCCL");
  else
    nccl_available(&why);
  return first_of(world, why);
}

constexpr std::string_view kCudaKey = "run.device=cuda: ";

/// Why this rank has no GPU and what is allowed, without the key.
std::string why_no_gpu(const RankPlace& place, int64_t ranks_per_gpu) {
  try {
    const int found = cuda::gpu_count();
    return concat(counted(place.local_size, "rank"), " on this host, ", ranks_per_gpu, " per GPU, but ", counted(found, "GPU"),
                  "; allowed: fewer ranks per host, run.ranks_per_gpu ", (place.local_size + found - 1) / found,
                  " (slow, for tests), or run.device cpu");
  } catch (const ConfigError& error) {
    const std::string_view text = error.what();
    return std::string(text.starts_with(kCudaKey) ? text.substr(kCudaKey.size()) : text);
  }
}

/// What run.device auto becomes. CPUs beside GPUs that not every rank can use would be slow by mistake. `found`: GPUs that this rank sees; `index`:
/// its GPU, or kNone. Collective.
DeviceType automatic_device(Communicator& world, const RankPlace& place, const Config& config, int found, int index, const MachineOptions& options) {
  const std::string why = index != kNone ? "" : concat("rank ", world.rank(), " on ", host_name(), ": ", why_no_gpu(place, config.run.ranks_per_gpu));
  const std::string reason = first_of(world, why);
  if (reason.empty()) return DeviceType::kCuda;
  if (all_reduce_scalar(world, found > 0 || has_gpu_files(options.device_files) ? 1 : 0, ReduceOp::kMax) == 0) return DeviceType::kCpu;
  const std::string text = "this job's hosts have GPUs, but not every rank can use one: " + reason;
  if (!options.may_ignore_gpus) throw AgreedError(ExitCode::kUsage, "run.device=auto: " + text, world.rank() == 0);
  if (world.rank() == 0) std::cerr << concat("warning: all ranks use CPUs; ", text, "\n");
  return DeviceType::kCpu;
}

/// What check() says of a configuration for `device`, a line each.
std::set<std::string> violations_on(Config config, DeviceType device) {
  config.run.device = device;
  Violations violations;
  check(config, {}, violations);
  std::istringstream text(violations.text({}));
  std::set<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.insert(line);
  return lines;
}

/// Replaces run.device auto, and applies the rules of the configuration again, because some are about the device. A configuration made in code, for a
/// benchmark or a model alone, may lack what a run needs; only what the device breaks counts. Collective.
void resolve_device(Communicator& world, const RankPlace& place, Config& config, int found, int index, const MachineOptions& options) {
  const DeviceType device = automatic_device(world, place, config, found, index, options);
  const std::set<std::string> before = violations_on(config, DeviceType::kAuto);
  std::string broken;
  for (const std::string& line : violations_on(config, device))
    if (!before.contains(line)) broken += (broken.empty() ? "" : "\n") + line;
  if (!broken.empty())
    throw AgreedError(ExitCode::kUsage, concat("run.device=auto is ", name_of(device), " in this job: ", broken), world.rank() == 0);
  config.run.device = device;
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

NcclOptions nccl_options(const Config& config) {
  return {.max_blocks = static_cast<int>(config.parallel.communication_sms), .register_buffers = config.parallel.register_buffers};
}

bool may_use_gpus(const OneOf<DeviceType>& device) { return device == DeviceType::kCuda || (device == DeviceType::kAuto && has_gpu_files()); }

Machine::Machine(std::unique_ptr<Communicator> host, const RankPlace& place, Config& config, const MachineOptions& options)
    : world_(options.world_is_encrypted ? std::move(host) : with_encryption(std::move(host), place, config)) {
  const bool encrypted = is_encrypted(config.security) && place.has_other_hosts(world_->size());
  const bool reports = world_->rank() == 0;
  const int found = config.run.device == DeviceType::kCpu ? 0 : usable_gpus();
  const int index = config.run.device == DeviceType::kCpu ? kNone : gpu_of(*world_, place, found, config.run.ranks_per_gpu);
  if (config.run.device == DeviceType::kAuto) resolve_device(*world_, place, config, found, index, options);
  if (config.run.device == DeviceType::kCuda) {
    collectively(*world_, [&] {
      open_gpu(place, index, config);
      arena_ = std::make_unique<Arena>(*gpu_);
      ctx_ = {Device::kCuda, arena_.get(), 1, gpu_.get()};
      gemm_library(ctx_);  // reports a missing library now, as the next line does
      if (config.kernels.attention == AttentionEngine::kCudnn) cuda::attention_library();
    });
    const bool shared = config.run.ranks_per_gpu > 1;
    const std::string missing = shared || world_->size() == 1 ? "" : nccl_missing(*world_, *gpu_);
    if (!missing.empty() && config.kernels.cuda_graph)
      throw AgreedError(ExitCode::kUsage, "kernels.cuda_graph=true: needs NCCL between ranks; allowed false: " + missing, reports);
    if (!missing.empty() && reports) std::cerr << "warning: ranks communicate through host memory, which is slow: " << missing << "\n";
    if (shared || !missing.empty()) {
      world_ = make_staged_world(encrypted ? std::move(world_) : with_collectives(std::move(world_), config), *gpu_);
      return;
    }
    if (encrypted)
      throw AgreedError(
          ExitCode::kUsage,
          "security.encryption=required: GPUs of several hosts communicate through NCCL, which encrypts nothing, by sockets or by RDMA; allowed "
          "run.ranks_per_gpu from 2, where messages go through host memory, run.device cpu, or none with a network that encrypts (WireGuard, IPsec)",
          reports);
    world_ = make_nccl_world(std::move(world_), *gpu_, nccl_options(config));
  } else {
    const Device device = config.training.precision == Arithmetic::kFp64 ? Device::kReference : Device::kCpu;
    arena_ = std::make_unique<Arena>(device);
    ctx_ = {device, arena_.get(), threads_per_rank(place.local_size, place.threads), nullptr, isa_of(*world_, config.kernels.cpu_isa)};
    limit_gemm_library(ctx_);
    if (!encrypted) world_ = with_collectives(std::move(world_), config);
  }
}

Machine::~Machine() = default;

void Machine::open_gpu(const RankPlace& place, int index, const Config& config) {
  if (index == kNone) throw ConfigError(concat(kCudaKey, why_no_gpu(place, config.run.ranks_per_gpu)));
  const auto free = static_cast<int>(config.parallel.communication_sms);
  gpu_ = std::make_unique<cuda::Gpu>(index, cuda::GpuOptions{.tf32 = config.kernels.tf32,
                                                             .communication_multiprocessors = free,
                                                             .cudnn_attention = config.kernels.attention == AttentionEngine::kCudnn});
  if (const int all = gpu_->properties().multiprocessors; free >= all)
    throw ConfigError(concat("parallel.communication_sms=", free, ": leaves none of the ", all, " multiprocessors of the GPU (",
                             gpu_->properties().name, ") to matrix products; allowed 0 to ", all - 1, "; nearest valid ", all - 1));
}

}  // namespace trireme
