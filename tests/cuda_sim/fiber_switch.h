#pragma once
// The switch from one thread of a block to the next, and the synchronisation of lanes. They take most of a kernel's time and are inlined into their
// callers, because every return on a stack that was switched to is mispredicted.
#include <cstring>

#include "tests/cuda_sim/block.h"

namespace cuda_sim {

/// The thread that runs. Host code must not call.
Fiber& current();

inline bool same_site(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

/// Selects the fiber to run next; a thread not yet started begins on `reuse`, if given. Returns null if no thread can run.
__attribute__((always_inline)) inline Fiber* BlockRunner::next(Fiber* reuse) {
  const size_t choices = runnable_.size() + unstarted_.size();
  if (choices == 0) return nullptr;
  if (!runnable_.empty()) {
    size_t pick = newest_first_ ? runnable_.size() - 1 : random_.below(choices);
    if (pick < runnable_.size()) {
      std::swap(runnable_[pick], runnable_.back());
      Fiber* const fiber = runnable_.back();
      runnable_.pop_back();
      fiber->waits = false;
      return fiber;
    }
  }
  const int thread = unstarted_.back();
  unstarted_.pop_back();
  Fiber& fiber = reuse != nullptr ? *reuse : fresh_fiber();
  begin_thread(fiber, thread);
  return &fiber;
}

#if defined(__x86_64__)
/// Leaves the stack that runs for that of `to`, and saves in `*from` where to continue. No call and no return: those of the threads of a warp then pair
/// up as the processor predicts them, which halves the time of a switch. The registers are the compiler's to save, as far as it needs them; 128 bytes
/// below the stack pointer belong to the function that runs. A new fiber begins as after a call, see BlockRunner::fresh_fiber.
__attribute__((always_inline)) inline void switch_stack(void** from, void* to) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rcx\n\t"
      "pushq %%rcx\n\t"
      "movq %%rsp, (%%rdi)\n\t"
      "movq %%rsi, %%rsp\n\t"
      "popq %%rcx\n\t"
      "jmp *%%rcx\n"
      "1:\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
        "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#if defined(__AVX512F__)
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",
        "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "memory", "cc");
}
#endif

__attribute__((always_inline)) inline void BlockRunner::switch_to(Fiber& from, Fiber& to) {
  ++switches_;
  this_thread = &to;
  left_ = &from;
  from.mark.leave(to.mark);
#if defined(__x86_64__)
  switch_stack(&from.context, to.context);
#else
  const boost::context::detail::transfer_t back = boost::context::detail::jump_fcontext(to.context, nullptr);
  left_->context = back.fctx;
#endif
  from.mark.arrive(left_->mark);
}

__attribute__((always_inline)) inline void BlockRunner::suspend(Fiber& self) {
  self.waits = true;
  Fiber* const to = next(nullptr);
  if (to == nullptr) fail_stuck();
  if (to != &self) switch_to(self, *to);
}

__attribute__((always_inline)) inline bool BlockRunner::meet(Fiber& self, Meeting meeting, unsigned mask, Site site, void* slot) {
  Warp& warp = warp_of(self);
  const unsigned bit = 1u << (self.thread % 32);
  self.meeting = meeting;
  self.site = site;
  self.mask = mask;
  self.slot = slot;
  if ((mask & bit) == 0) fail_meeting(self, "is not in its own mask");
  if ((mask & warp.absent) != 0) fail_meeting(self, "has a mask with lanes that have returned or do not exist");
  Arrival* own = nullptr;
  for (Arrival& other : warp.arrivals) {
    if (other.mask == mask && other.meeting == meeting && same_site(other.site, site))
      own = &other;
    else if ((other.mask & bit) != 0 && (other.arrived & mask) != 0)
      fail_apart(self, *warp.lanes[__builtin_ctz(other.arrived & mask)]);
  }
  if (own == nullptr) own = &warp.arrivals.emplace_back(Arrival{meeting, mask, site, 0});
  own->arrived |= bit;
  if (own->arrived == mask) {
    *own = warp.arrivals.back();
    warp.arrivals.pop_back();
    return true;
  }
  suspend(self);
  return false;
}

}  // namespace cuda_sim
