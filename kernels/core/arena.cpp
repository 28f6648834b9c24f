#include "kernels/core/arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/gpu.h"

// Under AddressSanitizer, free buffers of the arena and the padding after live buffers are poisoned.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#endif

namespace trireme {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int kPoisonByte = 0xFF;

/// Size classes are multiples of 64 bytes, four per power of two above 256: rounding wastes at most a quarter, and few classes serve all shapes.
size_t size_class(int64_t bytes) {
  const size_t size = std::max<size_t>(static_cast<size_t>(bytes), 1);
  const size_t step = std::max<size_t>(std::bit_floor(size) / 4, 64);
  return (size + step - 1) / step * step;
}

}  // namespace

const char* name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters: return "parameters";
    case MemoryCategory::kGradients: return "gradients";
    case MemoryCategory::kOptimizer: return "optimizer";
    case MemoryCategory::kActivations: return "activations";
    case MemoryCategory::kWorkspace: return "workspace";
    case MemoryCategory::kCommunication: return "communication";
    case MemoryCategory::kData: return "data";
  }
  return "?";
}

const char* name_of(MemoryPhase phase) {
  switch (phase) {
    case MemoryPhase::kLoad: return "load";
    case MemoryPhase::kForward: return "forward";
    case MemoryPhase::kBackward: return "backward";
    case MemoryPhase::kOptimizer: return "optimizer";
    case MemoryPhase::kEvaluation: return "evaluation";
    case MemoryPhase::kSave: return "save";
  }
  return "?";
}

/// Shared by the arena and every live buffer: whichever is destroyed last returns the memory to the system.
struct Arena::State {
  struct Gauge {
    int64_t current = 0;
    int64_t peak = 0;
    void add(int64_t bytes) {
      current += bytes;
      peak = std::max(peak, current);
    }
  };

  State(Device of_device, cuda::Gpu* of_gpu, bool with_poison, bool with_caching)
      : device(of_device), gpu(of_gpu), poison(with_poison), caching(with_caching) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (const Slab& slab : slabs) release(slab);
  }

  /// New memory: from the reserve if enough of it is left, otherwise from the system.
  void* fresh(size_t size) {
    system_bytes += static_cast<int64_t>(size);
    if (device == Device::kMeta) return nullptr;
    if (size > reserve_bytes) {
      ++system_allocations;
      return slabs.emplace_back(from_system(size)).memory;
    }
    void* const memory = reserve;
    reserve = static_cast<char*>(reserve) + size;
    reserve_bytes -= size;
    return memory;
  }

  void set_reserve(void* memory, int64_t bytes) {
    TRIREME_CHECK(reserve_bytes == 0 && device != Device::kMeta && caching,
                  "reserve() with an unused reserve left, on the meta device, or without caching");
    ++system_allocations;
    reserve = memory;
    reserve_bytes = static_cast<size_t>(bytes);
  }

  /// A buffer of exactly these bytes, without the cache.
  void* take_uncached(int64_t bytes) {
    ++system_allocations;
    system_bytes += bytes;
    void* const buffer = gpu->allocate_async(bytes);
    if (poison) gpu->fill_bytes(buffer, kPoisonByte, bytes);
    return buffer;
  }

  void* take(int64_t bytes) {
    if (!caching) return take_uncached(bytes);
    const size_t size = size_class(bytes);
    std::vector<void*>& buffers = free_buffers[size];
    void* buffer = nullptr;
    if (buffers.empty()) {
      buffer = fresh(size);
    } else {
      buffer = buffers.back();
      buffers.pop_back();
    }
    if (device == Device::kMeta) return nullptr;
    if (device == Device::kCuda) {
      if (poison) gpu->fill_bytes(buffer, kPoisonByte, static_cast<int64_t>(size));
      return buffer;
    }
    ASAN_UNPOISON_MEMORY_REGION(buffer, size);
    if (poison) std::memset(buffer, kPoisonByte, size);
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(buffer) + bytes, size - static_cast<size_t>(bytes));
    return buffer;
  }

  void give_back(void* buffer, int64_t bytes) {
    if (!caching) return gpu->release_async(buffer);
    const size_t size = size_class(bytes);
    if (buffer != nullptr && device != Device::kCuda) ASAN_POISON_MEMORY_REGION(buffer, size);
    free_buffers[size].push_back(buffer);
  }

  struct Slab {
    void* memory;
    size_t size;
  };
  Slab from_system(size_t size) {
    return {device == Device::kCuda ? gpu->allocate(static_cast<int64_t>(size)) : ::operator new(size, kAlignment), size};
  }
  void release(const Slab& slab) {
    if (device == Device::kCuda) return gpu->release(slab.memory);
    ASAN_UNPOISON_MEMORY_REGION(slab.memory, slab.size);
    ::operator delete(slab.memory, kAlignment);
  }

  void count(int64_t bytes, MemoryCategory category) {
    categories[static_cast<size_t>(category)].add(bytes);
    total.add(bytes);
    note_phase(static_cast<size_t>(category));
  }

  /// Updates the peaks of the current phase.
  void note_phase(size_t category) {
    PhasePeaks& peaks = phases[static_cast<size_t>(phase)];
    peaks.categories[category] = std::max(peaks.categories[category], categories[category].current);
    peaks.total = std::max(peaks.total, total.current);
  }

  struct PhasePeaks {
    std::array<int64_t, kMemoryCategories> categories{};
    int64_t total = 0;
  };

  const Device device;
  cuda::Gpu* const gpu;
  const bool poison, caching;
  std::array<Gauge, kMemoryCategories> categories;
  Gauge total;
  MemoryPhase phase = MemoryPhase::kLoad;
  std::array<PhasePeaks, kMemoryPhases> phases;
  int64_t system_allocations = 0;
  int64_t system_bytes = 0;
  void* reserve = nullptr;  ///< unused rest of the reserve
  size_t reserve_bytes = 0;
  std::vector<Slab> slabs;
  std::vector<std::shared_ptr<void>> lent;            ///< reserves of other allocators
  std::map<size_t, std::vector<void*>> free_buffers;  ///< by size class; null pointers on the meta device
};

Arena::Arena(Device device, bool poison) : state_(std::make_shared<State>(device, nullptr, poison, true)) {
  TRIREME_CHECK(device != Device::kCuda, "a CUDA arena needs a Gpu");
}
Arena::Arena(cuda::Gpu& gpu, bool poison, bool caching) : state_(std::make_shared<State>(Device::kCuda, &gpu, poison, caching)) {}
Arena::~Arena() = default;

std::shared_ptr<void> Arena::allocate(int64_t bytes, MemoryCategory category) {
  TRIREME_CHECK(bytes >= 0, "invalid allocation size: ", bytes, " bytes of ", name_of(category));
  void* buffer = state_->take(bytes);
  state_->count(bytes, category);
  return {buffer, [state = state_, bytes, category](void* returned) {
            state->count(-bytes, category);
            state->give_back(returned, bytes);
          }};
}

void Arena::reserve(int64_t bytes) { state_->set_reserve(state_->slabs.emplace_back(state_->from_system(static_cast<size_t>(bytes))).memory, bytes); }

void Arena::reserve(std::shared_ptr<void> memory, int64_t bytes) {
  state_->set_reserve(memory.get(), bytes);
  state_->lent.push_back(std::move(memory));
}

Device Arena::device() const { return state_->device; }
int64_t Arena::current_bytes(MemoryCategory category) const { return state_->categories[static_cast<size_t>(category)].current; }
int64_t Arena::peak_bytes(MemoryCategory category) const { return state_->categories[static_cast<size_t>(category)].peak; }
int64_t Arena::peak_bytes() const { return state_->total.peak; }
void Arena::set_phase(MemoryPhase phase) {
  if (state_->phase == phase) return;
  state_->phase = phase;
  for (size_t c = 0; c < kMemoryCategories; ++c) state_->note_phase(c);
}
int64_t Arena::peak_bytes(MemoryPhase phase) const { return state_->phases[static_cast<size_t>(phase)].total; }
int64_t Arena::peak_bytes(MemoryPhase phase, MemoryCategory category) const {
  return state_->phases[static_cast<size_t>(phase)].categories[static_cast<size_t>(category)];
}
int64_t Arena::system_allocations() const { return state_->system_allocations; }
int64_t Arena::system_bytes() const { return state_->system_bytes; }

void Arena::reset_peak() {
  for (State::Gauge& gauge : state_->categories) gauge.peak = gauge.current;
  state_->total.peak = state_->total.current;
  state_->phases = {};
  for (size_t c = 0; c < kMemoryCategories; ++c) state_->note_phase(c);
}

}  // namespace trireme
