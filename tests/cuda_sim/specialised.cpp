// What warps of different tasks in one block need: named barriers and the exchange of registers. Implements device_thread.h on the block runner.
#include <algorithm>
#include <string>

#include "tests/cuda_sim/fiber_switch.h"

namespace cuda_sim {
namespace {

struct BarrierSlot {
  int id, threads;
};

}  // namespace

/// A barrier counts warps (PTX ISA, "barrier"): the lanes of a warp meet, and the last one arrives for all of them. Stricter than PTX, a warp arrives
/// once in a phase: a second time, it would count in the place of another one.
void BlockRunner::pass_barrier(Fiber& self, Meeting meeting, int id, int threads, Site site, BarrierArrival arrived) {
  maybe_copy(self);
  if (late_mode_ == 2) run_some(self, 32);
  BarrierSlot slot{id, threads};
  self.barrier = id;
  if (!meet(self, meeting, ~0U, site, &slot)) return;
  // Does not return, and leaves no memory to the stack: see BlockRunner::fail.
  const auto fail_barrier = [&](std::string what) {
    std::string text = text_of("calls barrier " + std::to_string(id) + what, meeting, ~0U, site);
    std::string().swap(what);
    fail(cudaErrorLaunchFailure, std::move(text));
  };
  Warp& warp = warp_of(self);
  for (const Fiber* const lane : warp.lanes) {
    const auto& other = *static_cast<const BarrierSlot*>(lane->slot);
    if (other.id != id || other.threads != threads) fail_barrier(" with another number or count than other lanes of its warp");
  }
  if (id < 1 || id >= kNamedBarriers) fail_barrier(", which is not one of 1 to 15,");
  if (threads <= 0 || threads % 32 != 0 || threads > threads_)
    fail_barrier(" for " + std::to_string(threads) + " threads, which is no multiple of 32 up to the " + std::to_string(threads_) + " of the block,");
  NamedBarrier& barrier = named_[id];
  if (barrier.arrived > 0 && barrier.threads != threads) {
    std::string text = text_of("calls barrier " + std::to_string(id) + " for " + std::to_string(threads) + " threads", meeting, ~0U, site);
    text += text_of(", while " + std::to_string(barrier.arrived) + " have arrived for " + std::to_string(barrier.threads), barrier.meeting, ~0U,
                    barrier.site);
    fail(cudaErrorLaunchFailure, std::move(text));
  }
  const uint32_t bit = 1U << (self.thread / 32);
  if ((barrier.warps & bit) != 0)
    fail_barrier(" again while it has " + std::to_string(barrier.arrived) + " of " + std::to_string(threads) + " threads,");
  barrier.warps |= bit;
  barrier.threads = threads;
  barrier.arrived += 32;
  barrier.meeting = meeting;
  barrier.site = site;
  const bool waits = meeting == Meeting::kBarrierSync, complete = barrier.arrived == threads;
  if (waits) barrier.waiting.push_back(&warp);
  if (arrived != nullptr) arrived(id, waits, complete);
  if (complete) {
    for (const Warp* const waiting : barrier.waiting) runnable_.insert(runnable_.end(), std::begin(waiting->lanes), std::end(waiting->lanes));
    barrier.warps = 0;
    barrier.arrived = 0;
    barrier.waiting.clear();
  }
  if (waits)
    suspend(self);  // also the last one to arrive, which must not be favoured
  else
    release(warp, ~0U, self);
}

/// The registers of a block are those of its launch: what one warpgroup gives up another one may take. Stricter than PTX, the warps of a warpgroup meet.
void BlockRunner::change_registers(Fiber& self, Meeting meeting, int count, Site site) {
  Warpgroup* const group = meet_warpgroup(self, meeting, site, nullptr);
  if (group == nullptr) return;
  if (capability_ != 90) fail_meeting(self, "needs a GPU of compute capability 9.0");
  const bool raises = meeting == Meeting::kRaiseRegisters;
  if (raises ? count < group->registers : count > group->registers) {
    std::string text = text_of("changes its registers from " + std::to_string(group->registers) + " to " + std::to_string(count), meeting, ~0U, site);
    fail(cudaErrorLaunchFailure, std::move(text));
  }
  if (raises) {
    group->raise_to = count;
    raising_.push_back(group);
    raise_waiting();
    suspend(self);
    return;
  }
  free_registers_ += group->registers - count;
  group->registers = count;
  raise_waiting();
  release(*group, self);
}

/// Gives registers to the warpgroups that wait for them, as far as there are enough.
void BlockRunner::raise_waiting() {
  std::erase_if(raising_, [&](Warpgroup* group) {
    const int wanted = group->raise_to - group->registers;
    if (wanted > free_registers_) return false;
    free_registers_ -= wanted;
    group->registers = group->raise_to;
    runnable_.insert(runnable_.end(), std::begin(group->threads), std::end(group->threads));
    return true;
  });
}

void barrier_sync(int id, int threads, Site site, BarrierArrival arrived) {
  Fiber& self = current();
  self.runner->pass_barrier(self, Meeting::kBarrierSync, id, threads, site, arrived);
}
void barrier_arrive(int id, int threads, Site site, BarrierArrival arrived) {
  Fiber& self = current();
  self.runner->pass_barrier(self, Meeting::kBarrierArrive, id, threads, site, arrived);
}
void raise_registers(int count, Site site) {
  Fiber& self = current();
  self.runner->change_registers(self, Meeting::kRaiseRegisters, count, site);
}
void lower_registers(int count, Site site) {
  Fiber& self = current();
  self.runner->change_registers(self, Meeting::kLowerRegisters, count, site);
}

}  // namespace cuda_sim
