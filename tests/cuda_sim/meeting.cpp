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

std::string BlockRunner::where(const Fiber& fiber) const {
  return "(" + std::to_string(fiber.index.x) + "," + std::to_string(fiber.index.y) + "," + std::to_string(fiber.index.z) + ")";
}

/// Describes a block whose live threads all wait: lists each place where they wait once.
std::string BlockRunner::stuck_text() const {
  std::string text = "waits, as do all other threads:";
  std::vector<const Fiber*> told;
  for (const auto& fiber : fibers_) {
    if (!fiber->waits) continue;
    auto same = [&](const auto& other) {
      return other->waits && other->meeting == fiber->meeting && other->mask == fiber->mask && same_site(other->site, fiber->site);
    };
    if (std::any_of(told.begin(), told.end(), same)) continue;
    told.push_back(fiber.get());
    const auto count = std::count_if(fibers_.begin(), fibers_.end(), same);
    text +=
        text_of((told.size() > 1 ? "; " : " ") + std::to_string(count) + " of " + std::to_string(live_) + " (one is thread " + where(*fiber) + ")",
                fiber->meeting, fiber->mask, fiber->site);
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
