#pragma once
// Pinned host memory between the host and one stream. One thread, one stream: copies through a buffer are in the stream's order.
#include <cstdint>
#include <vector>

#include "kernels/core/gpu.h"

namespace trireme::cuda {

/// Host memory that a GPU copies from and to without the host's help. Errors: ConfigError where the system gives none.
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

/// An event of its own, without timing.
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

/// Uploads in pieces. A piece is filled by as many uploads as it holds; when it is left, its event is recorded behind their copies, and the host waits
/// for that event before it writes the piece again, one round later. So small uploads cost no event and the host runs ahead by the whole ring.
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
  std::vector<OwnedEvent> left_;  ///< by piece: the copies of the last round are made
  int piece_ = 0;
  int64_t filled_ = 0;  ///< bytes of the piece
};

/// Slots for values on their way to the host.
class ReadbackPool {
 public:
  static constexpr int64_t kSlotBytes = 4096;
  static constexpr int kSlots = 64;  ///< at once; further ones are taken from the system when all are held

  struct Slot {
    unsigned char* data;
    OwnedEvent copied;
  };

  explicit ReadbackPool(Stream stream);
  Slot* read_back(const void* device, int64_t bytes);
  /// Also before the copy is made: the next copy into the slot is behind it in the stream.
  void give_back(Slot* slot) { free_.push_back(slot); }

 private:
  void grow();

  Stream stream_;
  std::vector<std::unique_ptr<PinnedBuffer>> buffers_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
};

}  // namespace trireme::cuda
