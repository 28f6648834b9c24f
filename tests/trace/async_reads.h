#pragma once
// Reads of shared memory by products of warpgroups and bulk operations, which may take place until the wait for them.
#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/cuda_sim/warpgroup.h"
#include "tests/trace/shadow.h"

namespace cuda_trace {

/// Who begins such operations and waits for them: a warpgroup or, of bulk operations, a thread.
class Reader {
 public:
  static Reader of_warpgroup(int thread) { return {true, thread / static_cast<int>(cuda_sim::kWarpgroup)}; }
  static Reader of_thread(int thread) { return {false, thread}; }
  bool is_warpgroup() const { return is_warpgroup_; }
  std::string name() const { return (is_warpgroup_ ? "warpgroup " : "thread ") + std::to_string(number_); }
  int first_thread() const { return is_warpgroup_ ? number_ * static_cast<int>(cuda_sim::kWarpgroup) : number_; }
  const char* operation() const { return is_warpgroup_ ? "wgmma" : "bulk operation"; }
  bool operator==(const Reader& other) const { return is_warpgroup_ == other.is_warpgroup_ && number_ == other.number_; }
  bool operator<(const Reader& other) const { return std::pair(is_warpgroup_, number_) < std::pair(other.is_warpgroup_, other.number_); }

 private:
  Reader(bool is_warpgroup, int number) : is_warpgroup_(is_warpgroup), number_(number) {}
  bool is_warpgroup_;
  int number_;
};

constexpr size_t kWarpsOfGroup = cuda_sim::kWarpgroup / 32;
using ArrivalsOfGroup = std::array<uint32_t, kWarpsOfGroup>;  ///< Party::arrivals of each warp

/// The end of an operation: pending, or the wait for it. Each warp of a warpgroup waits for its own part of a product.
struct End : Party {
  ArrivalsOfGroup arrivals_of_warps{};
};

/// The reads in one block, of whole chunks of 16 bytes.
class AsyncReads {
 public:
  void clear() {
    operations_.clear();
    chunks_.clear();
  }
  void begin(Reader reader, const Party& now) {
    operations_[reader].ends.push_back({now, {}});
    operations_[reader].ends.back().pending = true;
  }
  /// By the operation that has begun last. Operations of a reader end in order, so this read stands for its earlier ones.
  void read(Reader reader, uintptr_t address, size_t bytes) {
    const size_t number = operations_[reader].ends.size() - 1;
    for (uintptr_t chunk = address / kChunk; chunk <= (address + bytes - 1) / kChunk; ++chunk) {
      std::vector<Read>& reads = chunks_[chunk];
      std::erase_if(reads, [&](const Read& read) { return read.reader == reader; });
      reads.push_back({reader, number});
    }
  }
  void commit(Reader reader) { operations_[reader].groups.push_back(operations_[reader].ends.size()); }
  /// `arrivals`: of the warps, if the reader is a warpgroup.
  void wait(Reader reader, int groups_left, const Party& now, const ArrivalsOfGroup& arrivals = {}) {
    Operations& own = operations_[reader];
    const auto left = static_cast<size_t>(groups_left);
    if (own.groups.size() <= left) return;
    for (const size_t until = own.groups[own.groups.size() - left - 1]; own.ended < until; ++own.ended) {
      const void* const place = own.ends[own.ended].place;
      own.ends[own.ended] = {now, arrivals};
      own.ends[own.ended].place = place;
    }
  }
  /// Calls check(reader, end) for each read of these bytes, and forgets it: the write that follows is ordered behind it, or is reported.
  template <class Check>
  void write(uintptr_t address, size_t bytes, Check&& check) {
    if (chunks_.empty()) return;
    for (uintptr_t chunk = address / kChunk; chunk <= (address + bytes - 1) / kChunk; ++chunk) {
      const auto found = chunks_.find(chunk);
      if (found == chunks_.end()) continue;
      for (const Read& read : found->second) check(read.reader, operations_[read.reader].ends[read.number]);
      chunks_.erase(found);
    }
  }

 private:
  static constexpr uintptr_t kChunk = 16;
  struct Read {
    Reader reader;
    size_t number;
  };
  struct Operations {
    std::vector<End> ends;
    std::vector<size_t> groups;  // number of operations at each commit
    size_t ended = 0;
  };
  std::map<Reader, Operations> operations_;
  std::unordered_map<uintptr_t, std::vector<Read>> chunks_;
};

}  // namespace cuda_trace
