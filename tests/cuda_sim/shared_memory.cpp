// The shared memory of a block, and asynchronous copies into it.
#include <algorithm>
#include <cstring>

#include "tests/cuda_sim/block.h"

namespace cuda_sim {

void BlockRunner::prepare_shared() {
  std::memset(dynamic_, kPoison, call_->dynamic_shared);
  for (const Variable& variable : variables_) std::memset(variable.memory, kPoison, variable.bytes);
}

void BlockRunner::check_shared() {
#if !defined(__SANITIZE_ADDRESS__)
  for (const Variable& variable : variables_)
    for (size_t i = 0; i < kGap; ++i)
      if (variable.memory[variable.bytes + i] != kPoison && fault_.error == cudaSuccess)
        fault_ = {cudaErrorIllegalAddress,
                  "block " + std::to_string(shape_.index.x) + ": bytes after a static shared variable of " + std::to_string(variable.bytes) +
                      " bytes were written",
                  0};
#endif
}

void* BlockRunner::static_shared(const void* tag, size_t bytes, size_t alignment) {
  for (const Variable& variable : variables_)
    if (variable.tag == tag) return variable.memory;
  const size_t align = std::max<size_t>(alignment, 16);
  const size_t begin = (static_used_ + align - 1) / align * align;
  size_t total = bytes;
  for (const Variable& variable : variables_) total += variable.bytes;
  if (total > kSharedDefault || begin + bytes + kGap > kStaticZone || total + call_->dynamic_shared > kSharedLimit)
    fail(cudaErrorInvalidConfiguration, "needs " + std::to_string(total) + " bytes of static shared memory");
  static_used_ = begin + bytes + kGap;
  unsigned char* const memory = shared_ + begin;
  asan_unpoison(reinterpret_cast<uintptr_t>(memory), reinterpret_cast<uintptr_t>(memory) + bytes);
#if defined(__SANITIZE_ADDRESS__)
  std::memset(memory, kPoison, bytes);
#else
  std::memset(memory, kPoison, bytes + kGap);
#endif
  variables_.push_back({tag, memory, bytes});
  return memory;
}

bool BlockRunner::is_shared(const void* address, size_t bytes) const {
  const auto* const at = static_cast<const unsigned char*>(address);
  return at >= shared_ && at + bytes <= shared_ + kStaticZone + kPage + kDynamicZone;
}

void BlockRunner::copy_until(Fiber& self, int group) {
  size_t done = 0;
  while (done < self.copies.size() && self.copies[done].group < group) {
    const AsyncCopy& copy = self.copies[done++];
    if (copy.valid)
      std::memcpy(copy.shared, copy.global, 16);
    else
      std::memset(copy.shared, 0, 16);
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

void BlockRunner::maybe_copy(Fiber& self) {
  if (copy_mode_ == 2 && !self.copies.empty() && random_.below(4) == 0) copy_until(self, self.copies[random_.below(self.copies.size())].group);
}

}  // namespace cuda_sim
