// cudart: copies and fills. As on a GPU, host memory is accessed when the copy runs; only pageable sources are copied to a buffer at the call.
#include <cstring>

#include "tests/cuda_sim/api.h"

namespace cuda_sim {
namespace {

enum class Place : uint8_t { kDevice, kPinned, kPageable, kNowhere };

/// The kind of memory that contains the whole range; kNowhere: in device or pinned address space, but not within one live allocation.
Place place_of(Machine& m, const void* memory, size_t bytes) {
  const int device = m.memory.device_of(key(memory));
  if (device >= 0) return m.memory.device(device).contains(key(memory), bytes) ? Place::kDevice : Place::kNowhere;
  if (!m.memory.pinned().holds(key(memory))) return Place::kPageable;
  return m.memory.pinned().contains(key(memory), bytes) ? Place::kPinned : Place::kNowhere;
}

class Copy final : public Operation {
 public:
  Copy(void* to, const void* from, size_t bytes, int device) : to_(to), from_(from), bytes_(bytes), device_(device) {}
  /// Copies the current bytes at `from` to a buffer.
  void stage() {
    staged_ = std::make_shared<std::string>(static_cast<const char*>(from_), bytes_);
    from_ = staged_->data();
  }
  /// Marks the copy as one between two devices.
  void between_devices() { between_ = true; }
  std::string name() const override { return "copy of " + std::to_string(bytes_) + " bytes"; }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Copy>(*this); }
  bool all_devices() const override { return between_; }
  void run() override {
    {
      const Lock lock(machine().mutex);
      for (const void* memory : {static_cast<const void*>(to_), from_})
        if (place_of(machine(), memory, bytes_) == Place::kNowhere) {
          machine().fail(device_, cudaErrorIllegalAddress, name() + ": " + machine().memory.describe(key(memory)));
          return;
        }
    }
    std::memcpy(to_, from_, bytes_);
  }

 private:
  void* to_;
  const void* from_;
  size_t bytes_;
  int device_;
  bool between_ = false;
  std::shared_ptr<std::string> staged_;
};

bool direction_fits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice, from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

cudaError_t queue_copy(Machine& m, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream& stream) {
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  const Place to_place = place_of(m, to, bytes), from_place = place_of(m, from, bytes);
  if (to_place == Place::kNowhere || from_place == Place::kNowhere) return cudaErrorInvalidValue;
  if (!direction_fits(kind, to_place, from_place)) return cudaErrorInvalidValue;
  auto copy = std::make_unique<Copy>(to, from, bytes, stream.device);
  for (const void* memory : {static_cast<const void*>(to), from}) {
    const int device = m.memory.device_of(key(memory));
    if (device >= 0 && device != stream.device) copy->between_devices();
  }
  if (from_place == Place::kPageable && stream.capture == nullptr) copy->stage();
  queue(stream, std::move(copy));
  return cudaSuccess;
}

cudaError_t queue_fill(Machine& m, void* memory, int value, size_t bytes, Stream& stream) {
  if (bytes == 0) return cudaSuccess;
  if (m.memory.device_of(key(memory)) != stream.device || place_of(m, memory, bytes) != Place::kDevice) return cudaErrorInvalidValue;
  const int device = stream.device;
  queue(stream, make_simple("fill of " + std::to_string(bytes) + " bytes", [=] {
          {
            const Lock lock(machine().mutex);
            if (place_of(machine(), memory, bytes) != Place::kDevice) {
              machine().fail(device, cudaErrorIllegalAddress, "fill: " + machine().memory.describe(key(memory)));
              return;
            }
          }
          std::memset(memory, value, bytes);
        }));
  return cudaSuccess;
}

}  // namespace
}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t error = queue_copy(m, to, from, bytes, kind, *target);
    m.maybe_run(lock);
    return error;
  });
}

/// Waits, except for copies within device memory.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call([&](Machine& m, Lock& lock) {
    if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
    const auto target = m.find_stream(nullptr);
    const cudaError_t error = queue_copy(m, to, from, bytes, kind, *target);
    if (error != cudaSuccess || bytes == 0) return error;
    if (place_of(m, to, bytes) == Place::kDevice && place_of(m, from, bytes) == Place::kDevice) return cudaSuccess;
    return m.wait(lock, target->last);
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t error = queue_fill(m, memory, value, bytes, *target);
    m.maybe_run(lock);
    return error;
  });
}

/// Does not wait.
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }

}  // extern "C"
