#include "kernels/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/error.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // of the copies' sources, for full copy-engine speed

constexpr int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

PinnedBuffer::PinnedBuffer(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears it: the device is still usable
    throw ConfigError(
        concat("run.device=cuda: cannot allocate ", bytes, " bytes of pinned host memory; check ulimit -l and the container's memory limit"));
  }
  check(error, "cudaHostAlloc");
  data_ = static_cast<unsigned char*>(memory);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

OwnedEvent::OwnedEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

UploadRing::UploadRing(Stream stream) : stream_(stream), buffer_(kPieceBytes * kPieces), left_(kPieces) {}

void UploadRing::upload(const void* host, void* device, int64_t bytes) {
  const auto* from = static_cast<const unsigned char*>(host);
  auto* to = static_cast<unsigned char*>(device);
  while (bytes > 0) {
    if (filled_ == kPieceBytes) next_piece();
    const int64_t part = std::min(bytes, kPieceBytes - filled_);
    unsigned char* const staged = buffer_.data() + piece_ * kPieceBytes + filled_;
    std::memcpy(staged, from, static_cast<size_t>(part));
    check(cudaMemcpyAsync(to, staged, static_cast<size_t>(part), cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    filled_ += round_up(part);  // never exceeds kPieceBytes, a multiple of kAlignment
    from += part, to += part, bytes -= part;
  }
}

void UploadRing::next_piece() {
  check(cudaEventRecord(left_[static_cast<size_t>(piece_)].get(), stream_), "cudaEventRecord");
  piece_ = (piece_ + 1) % kPieces;
  filled_ = 0;
  check(cudaEventSynchronize(left_[static_cast<size_t>(piece_)].get()), "cudaEventSynchronize");  // no wait in the first round: not yet recorded
}

ReadbackPool::ReadbackPool(Stream stream) : stream_(stream) { grow(); }

void ReadbackPool::grow() {
  buffers_.push_back(std::make_unique<PinnedBuffer>(kSlotBytes * kSlots));
  for (int i = 0; i < kSlots; ++i) {
    slots_.push_back(std::make_unique<Slot>(Slot{buffers_.back()->data() + i * kSlotBytes, OwnedEvent()}));
    free_.push_back(slots_.back().get());
  }
}

ReadbackPool::Slot* ReadbackPool::read_back(const void* device, int64_t bytes) {
  TRIREME_CHECK(bytes >= 0 && bytes <= kSlotBytes, "invalid read-back size: ", bytes, " bytes");
  if (free_.empty()) grow();
  Slot* const slot = free_.back();
  check(cudaMemcpyAsync(slot->data, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaEventRecord(slot->copied.get(), stream_), "cudaEventRecord");
  free_.pop_back();
  return slot;
}

}  // namespace trireme::cuda
