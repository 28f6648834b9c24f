#pragma once
// Pinned host memory for copies between the host and one stream. It is used by one thread and one stream, so copies run in stream order.
#include <cstdint>
#include <vector>

#include "kernels/core/gpu.h"

namespace trireme::cuda {

/// Page-locked host memory for asynchronous copies. Errors: ConfigError if the system cannot provide it.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  unsigned char* data() const { return data_; }

 private:
  unsigned char* data_ = nullptr;
};

/// RAII owner of an event without timing.
class OwnedEvent {
 public:
  OwnedEvent();
  ~OwnedEvent();
  OwnedEvent(OwnedEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  OwnedEvent& operator=(OwnedEvent&&) = delete;
  Event get() const { return event_; }

 private:
  Event event_ = nullptr;
};

/// Ring of staging pieces for uploads. Consecutive uploads share a piece until it is full. An event is then recorded behind their copies, and the
/// host waits for that event before it overwrites the piece one round later. Small uploads need no event, and the host can run a whole ring ahead.
class UploadRing {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  static constexpr int kPieces = 16;

  explicit UploadRing(Stream stream);
  void upload(const void* host, void* device, int64_t bytes);

 private:
  void next_piece();

  Stream stream_;
  PinnedBuffer buffer_;
  std::vector<OwnedEvent> left_;  ///< by piece: recorded behind the copies of its last round
  int piece_ = 0;
  int64_t filled_ = 0;  ///< bytes used in the current piece
};

/// Pool of pinned slots for small asynchronous copies to the host.
class ReadbackPool {
 public:
  static constexpr int64_t kSlotBytes = 4096;
  static constexpr int kSlots = 64;  ///< per buffer; another buffer is allocated when all slots are in use

  struct Slot {
    unsigned char* data;
    OwnedEvent copied;
  };

  explicit ReadbackPool(Stream stream);
  Slot* read_back(const void* device, int64_t bytes);
  /// May be called before the copy has run: the next copy into the slot follows it in the stream.
  void give_back(Slot* slot) { free_.push_back(slot); }

 private:
  void grow();

  Stream stream_;
  std::vector<std::unique_ptr<PinnedBuffer>> buffers_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
};

}  // namespace trireme::cuda
