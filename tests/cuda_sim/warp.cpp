// Warp-level operations and asynchronous copies: implements device_thread.h on the block runner.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_sim/fiber_switch.h"
#include "tests/cuda_sim/tensor_core.h"

namespace cuda_sim {

std::atomic<bool> hardware_rounding = false;

namespace {

struct ShuffleSlot {
  uint64_t value;
  int source;
  uint64_t result;
};
struct VoteSlot {
  bool predicate;
  unsigned result;
};
struct MmaSlot {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  float (*widen)(uint16_t);
};
struct LdmatrixSlot {
  uint32_t* r;
  const void* row;
};

template <class Slot>
Slot& slot_of(const Warp& warp, unsigned lane) {
  return *static_cast<Slot*>(warp.lanes[lane]->slot);
}

template <class Exchange>
__attribute__((always_inline)) inline void meet(Fiber& self, Meeting meeting, unsigned mask, Site site, void* slot, Exchange&& exchange) {
  BlockRunner& runner = *self.runner;
  if (!runner.meet(self, meeting, mask, site, slot)) return;
  Warp& warp = runner.warp_of(self);
  exchange(warp);
  runner.release(warp, mask, self);
}

/// Fragment layout as in the PTX ISA: lane = 4 * group + pair.
void multiply(Warp& warp) {
  float a[16][16];
  Row b[16], d[16];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const MmaSlot& slot = slot_of<MmaSlot>(warp, lane);
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = group + i % 2 * 8, column = pair + i / 2 * 8;
      a[row][column] = slot.widen(static_cast<uint16_t>(slot.a[i]));
      a[row][column + 1] = slot.widen(static_cast<uint16_t>(slot.a[i] >> 16));
    }
    for (unsigned i = 0; i < 2; ++i) {
      b[pair + i * 8][group] = slot.widen(static_cast<uint16_t>(slot.b[i]));
      b[pair + i * 8 + 1][group] = slot.widen(static_cast<uint16_t>(slot.b[i] >> 16));
    }
    for (unsigned i = 0; i < 4; ++i) d[group + i / 2 * 8][pair + i % 2] = slot.d[i];
  }
  for (unsigned i = 0; i < 16; ++i) add_product(d[i], a[i], b);
  for (unsigned lane = 0; lane < 32; ++lane) {
    const MmaSlot& slot = slot_of<MmaSlot>(warp, lane);
    for (unsigned i = 0; i < 4; ++i) slot.d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

void load_matrices(Warp& warp, bool transposed) {
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    uint16_t element[8][8];
    for (unsigned row = 0; row < 8; ++row) std::memcpy(element[row], slot_of<LdmatrixSlot>(warp, matrix * 8 + row).row, 16);
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned i = lane / 4, j = lane % 4 * 2;
      const uint32_t low = transposed ? element[j][i] : element[i][j], high = transposed ? element[j + 1][i] : element[i][j + 1];
      slot_of<LdmatrixSlot>(warp, lane).r[matrix] = low | high << 16;
    }
  }
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

Fiber& current() {
  if (this_thread == nullptr) {
    std::fprintf(stderr, "cuda_sim: device code called by the host\n");
    std::abort();
  }
  return *static_cast<Fiber*>(this_thread);
}

unsigned lane_id() { return static_cast<unsigned>(current().thread) % 32; }

void sync_block(Site site) {
  Fiber& self = current();
  self.runner->sync_block(self, site);
}

void sync_warp(unsigned mask, Site site) {
  Fiber& self = current();
  self.runner->maybe_copy(self);
  meet(self, Meeting::kSyncwarp, mask, site, nullptr, [](Warp&) {});
}

uint64_t shuffle(unsigned mask, uint64_t value, int source, Site site) {
  ShuffleSlot slot{value, source, 0};
  meet(current(), Meeting::kShuffle, mask, site, &slot, [mask](Warp& warp) {
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      auto& lane = slot_of<ShuffleSlot>(warp, static_cast<unsigned>(__builtin_ctz(rest)));
      const auto from = static_cast<unsigned>(lane.source) % 32;
      lane.result = (mask >> from & 1) != 0 ? slot_of<ShuffleSlot>(warp, from).value : ~uint64_t{0};
    }
  });
  return slot.result;
}

unsigned vote(unsigned mask, bool predicate, Site site) {
  VoteSlot slot{predicate, 0};
  meet(current(), Meeting::kVote, mask, site, &slot, [mask](Warp& warp) {
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((mask >> lane & 1) != 0 && slot_of<VoteSlot>(warp, lane).predicate) ballot |= 1u << lane;
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((mask >> lane & 1) != 0) slot_of<VoteSlot>(warp, lane).result = ballot;
  });
  return slot.result;
}

void mma(float* d, const uint32_t* a, const uint32_t* b, float (*widen)(uint16_t), Site site) {
  MmaSlot slot{d, a, b, widen};
  meet(current(), Meeting::kMma, ~0u, site, &slot, multiply);
}

void ldmatrix(uint32_t* r, const void* row, bool transposed, Site site) {
  Fiber& self = current();
  if (!self.runner->is_shared(row, 16) || !is_aligned(row))
    self.runner->fail(cudaErrorMisalignedAddress,
                      text_of("reads a row that is not in shared memory or not 16-byte aligned", Meeting::kLdmatrix, ~0u, site));
  LdmatrixSlot slot{r, row};
  meet(self, Meeting::kLdmatrix, ~0u, site, &slot, [transposed](Warp& warp) { load_matrices(warp, transposed); });
}

void async_copy(void* shared, const void* global, bool valid, Site site) {
  Fiber& self = current();
  if (!self.runner->is_shared(shared, 16) || !is_aligned(shared) || (valid && !is_aligned(global)))
    self.runner->fail(cudaErrorMisalignedAddress, "copies 16 bytes that are not 16-byte aligned, or not to shared memory, at cp.async in line " +
                                                      std::to_string(site.line) + " of " + site.file);
  self.runner->count_copy();
  self.copies.push_back({shared, global, valid, self.groups});
  if (self.runner->copies_at_once()) self.runner->copy_until(self, self.groups + 1);
}

void async_commit() {
  Fiber& self = current();
  ++self.groups;
  self.runner->maybe_copy(self);
}

void async_wait(int groups_left) {
  Fiber& self = current();
  self.runner->copy_until(self, self.groups - groups_left);
}

void wait_for_value(const uint32_t* counter, uint32_t value, Site site) {
  if (*counter == value) return;
  current().runner->fail(cudaErrorLaunchFailure, "waits in line " + std::to_string(site.line) + " of " + site.file +
                                                     " for a block that has not run: the counter is " + std::to_string(*counter) + ", not " +
                                                     std::to_string(value));
}

void release_value(uint32_t* counter, uint32_t value, Site site) {
  if (*counter >= value)
    current().runner->fail(cudaErrorLaunchFailure, "sets a counter in line " + std::to_string(site.line) + " of " + site.file + " to " +
                                                       std::to_string(value) + ", which is " + std::to_string(*counter) +
                                                       " already: it was not cleared before the launch");
  *counter = value;
}

void* static_shared(const void* tag, size_t bytes, size_t alignment) { return current().runner->static_shared(tag, bytes, alignment); }
void* dynamic_shared() { return current().runner->dynamic_shared(); }

}  // namespace cuda_sim
