#pragma once
// The last accesses to each byte of memory, and whether something orders the next one behind them (happens-before).
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cuda_trace {

/// What a thread has seen of another block, through releases and waits: all that the block did before it had passed `epoch` barriers, and what one of
/// its threads, which released, did before its step `steps`.
struct Seen {
  uint32_t epoch = 0, steps = 0;
  uint16_t thread = 0;
  const uint32_t* known = nullptr;  ///< Party::known of that thread when it released
  void raise(const Seen& other);
};

/// One access of a thread. A thread that runs has passed as many barriers as every other thread of its block that runs, and as many __syncwarp as
/// every lane of its warp that runs, so counts replace vector clocks. Named barriers order only the warps that take part, which is what `known` is for.
struct Party {
  const void* place = nullptr;
  uint32_t block = 0;       ///< number of the block in the launch, from 1; 0: no access
  uint32_t epoch = 0;       ///< barriers passed
  uint32_t warp_epoch = 0;  ///< __syncwarp of the whole warp passed
  uint32_t arrivals = 0;    ///< of the thread's warp at named barriers
  uint32_t step = 0;        ///< calls of fence_proxy_async and release_value that the thread has made
  uint16_t thread = 0;
  bool atomic = false;
  bool pending = false;  ///< of a cp.async or a bulk operation that its thread has not waited for
  bool bulk = false;     ///< by a bulk operation
  /// What the access that is being recorded has seen, by number of the other blocks.
  const std::vector<Seen>* seen = nullptr;
  /// For the access that is being recorded, by warp of its block: what that warp did before this number of arrivals is behind it. Null: nothing.
  const uint32_t* known = nullptr;

  /// Whether a named barrier orders what a thread of this block did before its warp arrived for the n-th time, from 0.
  bool knows(unsigned of_thread, uint32_t n) const { return known != nullptr && known[of_thread / 32] > n; }
};

/// Bytes of one space in granules of two.
class Shadow {
 public:
  /// `private_to_blocks`: shared memory, where every block has its own bytes at the same addresses.
  explicit Shadow(bool private_to_blocks) : private_(private_to_blocks) {}

  /// Calls conflict(earlier, wrote) for each earlier access that races with this one, then records it.
  template <class Conflict>
  void read(uintptr_t address, size_t bytes, const Party& now, Conflict&& conflict) {
    each(address, bytes, [&](Cell& cell) {
      if (!ordered(cell.write, now)) conflict(cell.write, true);
      add_reader(cell, now);
      read_ += !std::exchange(cell.was_read, true);
    });
  }
  template <class Conflict>
  void write(uintptr_t address, size_t bytes, const Party& now, Conflict&& conflict) {
    each(address, bytes, [&](Cell& cell) {
      if (!ordered(cell.write, now)) conflict(cell.write, true);
      for (const Party& reader : cell.readers)
        if (!ordered(reader, now)) conflict(reader, false);
      if (cell.others != nullptr)
        for (const Party& reader : *cell.others)
          if (!ordered(reader, now)) conflict(reader, false);
      cell.others.reset();
      cell.write = now;
      cell.readers[0] = cell.readers[1] = {};
      written_ += !std::exchange(cell.was_written, true);
    });
  }
  /// Calls body(write) for the last write of each granule.
  template <class Body>
  void each_write(uintptr_t address, size_t bytes, Body&& body) {
    each(address, bytes, [&](const Cell& cell) { body(cell.write); });
  }
  /// Counts the bytes as read.
  void count_read(uintptr_t address, size_t bytes) {
    each(address, bytes, [&](Cell& cell) { read_ += !std::exchange(cell.was_read, true); });
  }
  bool ordered(const Party& earlier, const Party& now) const;
  /// The thread has waited for a cp.async or a bulk operation that writes these bytes.
  void complete(uintptr_t address, size_t bytes, const Party& now);

  int64_t bytes_read() const { return read_ * kGranule; }
  int64_t bytes_written() const { return written_ * kGranule; }

 private:
  static constexpr uintptr_t kGranule = 2, kPage = 512;
  /// Without named barriers two readers are enough: with readers in two blocks or warps each later store races with one of them, and of one warp the
  /// last of two lanes count. Of blocks that releases order the last two count, behind which the others are.
  /// A named barrier may order one warp of a block and not another, so the last two lanes of each warp that have no place among the two are kept too.
  struct Cell {
    Party write, readers[2];
    std::unique_ptr<std::vector<Party>> others;  // of one block and epoch
    bool was_read = false, was_written = false;
  };
  struct Page {
    Cell cells[kPage / kGranule];
  };

  void add_reader(Cell& cell, const Party& now) const;
  static void keep(Cell& cell, const Party& reader, const Party& now);
  Page& page(uintptr_t number);
  template <class Body>
  void each(uintptr_t address, size_t bytes, Body&& body) {
    for (uintptr_t at = address / kGranule; at <= (address + bytes - 1) / kGranule; ++at)
      body(page(at / (kPage / kGranule)).cells[at % (kPage / kGranule)]);
  }

  bool private_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uintptr_t last_ = 0;
  Page* last_page_ = nullptr;
  int64_t read_ = 0, written_ = 0;
};

}  // namespace cuda_trace
