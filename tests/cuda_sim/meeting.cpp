// Synchronisation of the threads of a block or warp, and the error messages if it fails.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/cuda_sim/fiber_switch.h"

namespace cuda_sim {
namespace {

std::string text_of(std::string_view what, Meeting meeting, unsigned mask, Site site, std::string_view other_what, const Fiber& other) {
  std::string text = text_of(what, meeting, mask, site);
  text += text_of(other_what, other.meeting, other.mask, other.site);
  return text;
}

}  // namespace

const char* name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::kSyncthreads: return "__syncthreads";
    case Meeting::kSyncwarp: return "__syncwarp";
    case Meeting::kShuffle: return "a shuffle";
    case Meeting::kVote: return "a vote";
    case Meeting::kMma: return "mma";
    case Meeting::kLdmatrix: return "ldmatrix";
    case Meeting::kWgmma: return "wgmma";
    case Meeting::kWgmmaFence: return "wgmma_fence";
    case Meeting::kWgmmaCommit: return "wgmma_commit";
    case Meeting::kWgmmaWait: return "wgmma_wait";
    case Meeting::kBarrierSync: return "barrier_sync";
    case Meeting::kBarrierArrive: return "barrier_arrive";
    case Meeting::kRaiseRegisters: return "raise_registers";
    case Meeting::kLowerRegisters: return "lower_registers";
  }
  return "?";
}

std::string text_of(std::string_view what, Meeting meeting, unsigned mask, Site site) {
  std::string text(what);
  text += std::string(" at ") + name_of(meeting) + " in line " + std::to_string(site.line) + " of " + site.file;
  if (meeting != Meeting::kSyncthreads && mask != ~0u) {
    char digits[32];
    std::snprintf(digits, sizeof digits, ", mask 0x%08x", mask);
    text += digits;
  }
  return text;
}

void BlockRunner::release_barrier() {
  runnable_.insert(runnable_.end(), barrier_.begin(), barrier_.end());
  barrier_.clear();
}

void BlockRunner::sync_block(Fiber& self, Site site) {
  self.meeting = Meeting::kSyncthreads;
  self.site = site;
  self.mask = ~0u;
  if (!barrier_.empty() && !same_site(barrier_.front()->site, site))
    fail(cudaErrorLaunchFailure, text_of("waits", Meeting::kSyncthreads, ~0u, site, ", while another thread waits", *barrier_.front()));
  maybe_copy(self);
  if (late_mode_ == 2) run_some(self, 32);
  barrier_.push_back(&self);
  if (static_cast<int>(barrier_.size()) == live_) release_barrier();  // this one too: the last to arrive must not be favoured
  suspend(self);
}

void BlockRunner::fail_stuck() { fail(cudaErrorLaunchFailure, stuck_text()); }

void BlockRunner::fail_meeting(const Fiber& self, const char* what) {
  fail(cudaErrorLaunchFailure, text_of(what, self.meeting, self.mask, self.site));
}

void BlockRunner::fail_apart(const Fiber& self, const Fiber& other) {
  fail(cudaErrorLaunchFailure, text_of("waits", self.meeting, self.mask, self.site, ", for a lane that waits for it", other));
}

void BlockRunner::release(Warp& warp, unsigned mask, const Fiber& self) {
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    Fiber* const lane = warp.lanes[__builtin_ctz(rest)];
    if (lane != &self) runnable_.push_back(lane);
  }
}

Warpgroup* BlockRunner::meet_warpgroup(Fiber& self, Meeting meeting, Site site, void* slot) {
  Warpgroup& group = warpgroup_of(self);
  const size_t first_warp = static_cast<size_t>(self.thread) / kWarpgroup * (kWarpgroup / 32);
  self.meeting = meeting;
  self.site = site;
  self.mask = ~0u;
  self.slot = slot;
  for (size_t warp = first_warp; warp < first_warp + kWarpgroup / 32; ++warp)
    if (warp >= warps_.size() || warps_[warp].absent != 0) fail_meeting(self, "is in a warpgroup with threads that have returned or do not exist");
  if (group.arrived > 0 && (group.last->meeting != meeting || !same_site(group.last->site, site)))
    fail(cudaErrorLaunchFailure, text_of("waits", meeting, ~0u, site, ", while a thread of its warpgroup waits", *group.last));
  group.last = group.threads[static_cast<size_t>(self.thread) % kWarpgroup] = &self;
  if (++group.arrived == kWarpgroup) {
    group.arrived = 0;
    return &group;
  }
  suspend(self);
  return nullptr;
}

void BlockRunner::release(Warpgroup& group, const Fiber& self) {
  for (Fiber* const thread : group.threads)
    if (thread != &self) runnable_.push_back(thread);
}

/// A thread has returned.
void BlockRunner::check_finished(const Fiber& self) {
  const Warpgroup& group = warpgroup_of(self);
  if (group.arrived > 0)
    fail(cudaErrorLaunchFailure, text_of("returned while threads of its warpgroup wait for it", group.last->meeting, ~0u, group.last->site));
  if (!group.products.empty()) {
    const Product& product = group.products.back();
    fail(cudaErrorLaunchFailure,
         text_of(product.group == group.groups ? "returned before wgmma_commit of the product" : "returned before wgmma_wait of the product",
                 Meeting::kWgmma, ~0u, product.site));
  }
  if (!self.bulk.empty()) {
    const BulkOperation& last = self.bulk.back();
    fail(cudaErrorLaunchFailure, std::string("returned before ") + (last.group == self.bulk_groups ? "bulk_commit" : "bulk_wait") +
                                     " of the bulk operation in line " + std::to_string(last.site.line) + " of " + last.site.file);
  }
}

std::string BlockRunner::where(const Fiber& fiber) const {
  return "(" + std::to_string(fiber.index.x) + "," + std::to_string(fiber.index.y) + "," + std::to_string(fiber.index.z) + ")";
}

namespace {
/// The named barrier at which a thread waits; 0: none.
int barrier_of(const Fiber& fiber) { return fiber.meeting == Meeting::kBarrierSync || fiber.meeting == Meeting::kBarrierArrive ? fiber.barrier : 0; }
}  // namespace

/// Describes a block whose live threads all wait: lists each place where they wait once.
std::string BlockRunner::stuck_text() const {
  std::string text = "waits, as do all other threads:";
  std::vector<const Fiber*> told;
  for (const auto& fiber : fibers_) {
    if (!fiber->waits) continue;
    auto same = [&](const auto& other) {
      return other->waits && other->meeting == fiber->meeting && other->mask == fiber->mask && same_site(other->site, fiber->site) &&
             barrier_of(*other) == barrier_of(*fiber);
    };
    if (std::any_of(told.begin(), told.end(), same)) continue;
    told.push_back(fiber.get());
    const auto count = std::count_if(fibers_.begin(), fibers_.end(), same);
    text +=
        text_of((told.size() > 1 ? "; " : " ") + std::to_string(count) + " of " + std::to_string(live_) + " (one is thread " + where(*fiber) + ")",
                fiber->meeting, fiber->mask, fiber->site);
    if (const int id = barrier_of(*fiber); id >= 1 && id < kNamedBarriers)
      text += ", barrier " + std::to_string(id) + " where " + std::to_string(named_[id].arrived) + " of " + std::to_string(named_[id].threads) +
              " threads have arrived";
  }
  return text;
}

/// Switches to the main context and never returns. The abandoned stacks must own no heap memory, so `text` is moved out of them.
void BlockRunner::fail(cudaError_t error, std::string text, uintptr_t address, const void* place) {
  auto& self = *static_cast<Fiber*>(this_thread);
  fault_.error = error;
  fault_.address = address;
  fault_.place = place;
  fault_.text = "block (" + std::to_string(shape_.index.x) + "," + std::to_string(shape_.index.y) + "," + std::to_string(shape_.index.z) +
                "), thread " + where(self) + " " + text;
  std::string().swap(text);
  switch_to(self, main_);
  __builtin_trap();  // never reached
}

}  // namespace cuda_sim
