#include "trainer/islands/hogwild.h"

#include <sstream>

#include "kernels/ops/hogwild.h"
#include "parallel/comm/shared_memory.h"
#include "trainer/machine/collectively.h"

namespace trireme {
namespace {

/// Memory of all ranks of a group, which must be on one host.
std::unique_ptr<SharedMemory> memory_of_host(Communicator& group, int64_t bytes) {
  std::unique_ptr<SharedMemory> memory;
  std::string mine;
  if (group.rank() == 0) {
    memory = SharedMemory::make(bytes);
    if (memory) {
      const SharedMemory::Address address = memory->address();
      mine = concat(address.process, " ", address.descriptor, " ", address.nonce);
    }
  }
  std::istringstream text(all_gather_strings(group, mine).front());
  SharedMemory::Address address;
  text >> address.process >> address.descriptor >> address.nonce;
  if (group.rank() != 0 && text) memory = SharedMemory::open(address, bytes);
  if (all_reduce_scalar(group, memory ? 0 : 1, ReduceOp::kMax) > 0)
    throw AgreedError(ExitCode::kUsage,
                      "training.asynchronous.mode=hogwild: the islands cannot share memory; allowed if all ranks are on one host, or another mode",
                      group.rank() == 0);
  memory->seal();
  return memory;
}

}  // namespace

Hogwild::Hogwild(Communicator& islands, const Stages& stages, DType master, const AdamW& hyper) : islands_(islands), stages_(stages), hyper_(hyper) {
  const auto place = [&](Context ctx) {
    std::vector<std::vector<Tensor>> units;
    for (size_t s = 0; s < stages.size(); ++s) {
      units.emplace_back();
      for (size_t u = 0; u < stages[s]->params().units().size(); ++u)
        units.back().push_back(trainable(s, u) ? Tensor::empty(ctx, weights(s, u).shape(), master, MemoryCategory::kParameters) : Tensor());
    }
    return units;
  };
  Arena counting(Device::kMeta);
  place({Device::kMeta, &counting, 1});
  std::shared_ptr<SharedMemory> memory = memory_of_host(islands, counting.system_bytes());
  arena_.reserve(std::shared_ptr<void>(memory, memory->data()), counting.system_bytes());
  shared_ = place({Device::kCpu, &arena_, 1});  // at the same places on each rank
}

void Hogwild::start_round(Context& ctx) {
  if (islands_.rank() == 0)
    for (size_t s = 0; s < shared_.size(); ++s)
      for (size_t u = 0; u < shared_[s].size(); ++u)
        if (trainable(s, u)) write_shared(ctx, weights(s, u), shared_[s][u]);
  islands_.barrier();
}

void Hogwild::step(Context& ctx, const Tensor& scalars) {
  for (size_t s = 0; s < shared_.size(); ++s) {
    for (size_t u = 0; u < shared_[s].size(); ++u) {
      if (!trainable(s, u)) continue;
      const Tensor gradient = stages_[s]->grads().shard(static_cast<int>(u));
      std::vector<UpdateSlice> slices;
      const Unit& unit = *stages_[s]->params().units()[u];
      for (const Unit::Segment& segment : unit.owned_segments()) {
        UpdateSlice& added =
            slices.emplace_back(UpdateSlice{.w = unit.slice(shared_[s][u], segment), .g = unit.slice(gradient, segment), .state = {}});
        added.decay = segment.spec->decay;
      }
      hogwild_step(ctx, hyper_, scalars, slices);
    }
  }
  read(ctx);
}

void Hogwild::finish_round(Context& ctx) {
  islands_.barrier();
  read(ctx);
}

void Hogwild::read(Context& ctx) {
  for (size_t s = 0; s < shared_.size(); ++s) {
    for (size_t u = 0; u < shared_[s].size(); ++u) {
      if (!trainable(s, u)) continue;
      read_shared(ctx, shared_[s][u], weights(s, u));
      stages_[s]->params().mark_stale(static_cast<int>(u));
    }
  }
}

}  // namespace trireme
