// The shared memory of a block, its addresses, and asynchronous copies into it.
#include <algorithm>
#include <cstring>

#include "tests/cuda_sim/block.h"

namespace cuda_sim {

void BlockRunner::prepare_shared() {
#if defined(__SANITIZE_ADDRESS__)
  std::memset(dynamic_, kPoison, call_->dynamic_shared);
#else
  std::memset(dynamic_, kPoison, static_cast<size_t>(dynamic_end_ - dynamic_));
#endif
  for (const Variable& variable : variables_) std::memset(variable.memory, kPoison, variable.bytes);
}

void BlockRunner::check_shared() {
#if !defined(__SANITIZE_ADDRESS__)
  const auto check = [this](const unsigned char* end, size_t gap, const char* what, size_t bytes) {
    if (fault_.error != cudaSuccess || gap == 0 || (*end == kPoison && std::memcmp(end, end + 1, gap - 1) == 0)) return;
    fault_.error = cudaErrorIllegalAddress;
    fault_.text = "block " + std::to_string(shape_.index.x) + ": bytes after " + what + " of " + std::to_string(bytes) + " bytes were written";
  };
  for (const Variable& variable : variables_) check(variable.memory + variable.bytes, kGap, "a static shared variable", variable.bytes);
  const size_t dynamic = call_->dynamic_shared;
  check(dynamic_ + dynamic, static_cast<size_t>(dynamic_end_ - dynamic_) - dynamic, "the dynamic shared memory", dynamic);
#endif
}

void* BlockRunner::static_shared(const void* tag, size_t bytes, size_t alignment) {
  for (const Variable& variable : variables_)
    if (variable.tag == tag) return variable.memory;
  // A multiple of the alignment and of no larger power of two: nothing promises more.
  const size_t begin = (static_used_ + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  size_t total = bytes;
  for (const Variable& variable : variables_) total += variable.bytes;
  if (total > kSharedDefault || begin + bytes + kGap > kStaticZone || total + call_->dynamic_shared > call_->shared_limit)
    fail(cudaErrorInvalidValue, "needs " + std::to_string(total) + " bytes of static and " + std::to_string(call_->dynamic_shared) +
                                    " of dynamic shared memory, of which " + std::to_string(call_->shared_limit) + " are allowed");
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
  return at >= shared_ && at + bytes <= dynamic_end_;
}

bool BlockRunner::holds_shared(const void* address, size_t bytes) const {
  const auto* const at = static_cast<const unsigned char*>(address);
  const auto holds = [&](const unsigned char* begin, size_t size) { return at >= begin && bytes <= size && at <= begin + (size - bytes); };
  return holds(dynamic_, call_->dynamic_shared) ||
         std::any_of(variables_.begin(), variables_.end(), [&](const Variable& variable) { return holds(variable.memory, variable.bytes); });
}

uint32_t BlockRunner::shared_address(const void* address, Site site) {
  const auto* const at = static_cast<const unsigned char*>(address);
  if (at < dynamic_ || at > dynamic_ + call_->dynamic_shared)
    fail(cudaErrorIllegalAddress,
         "calls shared_address for memory that is not dynamic shared memory in line " + std::to_string(site.line) + " of " + site.file);
  return static_cast<uint32_t>(kDynamicAlignment) + static_cast<uint32_t>(at - dynamic_);
}

const unsigned char* BlockRunner::shared_at(uint32_t address, size_t bytes) const {
  const bool inside = address >= kDynamicAlignment && address - kDynamicAlignment + bytes <= call_->dynamic_shared;
  return inside ? dynamic_ + (address - kDynamicAlignment) : nullptr;
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
