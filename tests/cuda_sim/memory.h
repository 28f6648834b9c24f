#pragma once
// Memory of the simulated devices, and pinned host memory. Allocations end at a guard page, addresses are not reused, freed memory is unmapped, and
// fresh memory contains 0xFF bytes. Device memory is accessible only while it is open: while operations run. All calls require the machine's lock.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cuda_sim {

struct Allocation {
  uintptr_t begin = 0;
  size_t bytes = 0;
  uintptr_t first_page = 0, end_page = 0;
  bool stream_ordered = false;
};

/// One range of addresses, reserved for the lifetime of the process.
class Arena {
 public:
  void reserve();
  bool holds(uintptr_t address) const { return address - base_ < kRange; }
  void* allocate(size_t bytes, bool stream_ordered = false);
  /// Returns false if `memory` is not the beginning of a live allocation. Sets `damage` to a description if bytes around it were written.
  bool release(const void* memory, std::string* damage);
  void release_all(std::string* damage);
  /// Maps copies of `pattern`, whole pages, over whole pages of an allocation.
  void fill_with_copies(uintptr_t memory, size_t bytes, const std::vector<unsigned char>& pattern);
  /// Offsets of pages that were written since they were mapped.
  static std::vector<size_t> written_pages(uintptr_t memory, size_t bytes);
  const Allocation* find(uintptr_t address) const;  ///< the live allocation that contains the byte
  bool contains(uintptr_t address, size_t bytes) const;
  std::string describe(uintptr_t address) const;
  void open();
  void close();
  bool is_open() const { return open_; }
  size_t used() const { return used_; }
  int64_t live() const { return live_; }

 private:
  static constexpr uintptr_t kRange = uintptr_t{1} << 42;
  std::string damage_of(const Allocation& allocation) const;
  void unmap(Allocation& allocation);
  uintptr_t base_ = 0, next_ = 0;
  bool open_ = false;
  size_t used_ = 0;
  int64_t live_ = 0;
  std::map<uintptr_t, Allocation> allocations_, freed_;  // by first page
};

class Memory {
 public:
  /// Frees everything. Returns a description if bytes around an allocation were written.
  std::string reset(int devices);
  Arena& device(int index) { return devices_[static_cast<size_t>(index)]; }
  Arena& pinned() { return pinned_; }
  int device_of(uintptr_t address) const;  ///< by address range, live or not; -1: none
  bool is_host(uintptr_t address) const { return device_of(address) < 0; }
  std::string describe(uintptr_t address) const;
  void open(int device);
  /// Called after the last operation. Changing page protection is slow: if it has taken too large a share of the time, memory is sometimes left open.
  void close_all();

 private:
  std::vector<Arena> devices_;
  Arena pinned_;
  using Clock = std::chrono::steady_clock;
  Clock::time_point born_ = Clock::now();
  Clock::duration spent_{};
};

}  // namespace cuda_sim
