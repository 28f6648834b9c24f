#pragma once
// State of a Gpu, for the host code of kernels/cuda.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <typeindex>
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/cuda/staging.h"

namespace trireme::cuda {

struct Gpu::State {
  State(int of_index, const GpuOptions& with_options) : index(of_index), options(with_options) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// Does the work of Gpu's constructor. It is separate from State's constructor so that ~State releases what was acquired if it throws.
  void open();

  /// A library's state for this GPU (handle, chosen algorithms). It is created at its first use and destroyed before the streams.
  template <class Library>
  Library& library(Gpu& gpu) {
    std::shared_ptr<void>& slot = libraries[typeid(Library)];
    if (slot == nullptr) slot = std::make_shared<Library>(gpu);
    return *static_cast<Library*>(slot.get());
  }

  void* allocate(int64_t bytes, const char* purpose) const;

  const int index;
  const GpuOptions options;
  GpuProperties properties;
  Stream compute = nullptr;
  int urgent = 0;  ///< highest stream priority
  void* scratch = nullptr;
  uint32_t* ticket = nullptr;
  void* workspace = nullptr;  ///< for libraries, on the compute stream
  int64_t workspace_bytes = 0;
  int communications = 0;  ///< begun and not ended
  std::vector<Stream> further_streams;
  std::vector<Event> events;       ///< all, of both pools
  std::vector<Event> free_events;  ///< recycled: may be recorded again
  std::vector<Event> free_timers;  ///< recycled events with a time stamp
  std::optional<UploadRing> uploads;
  std::shared_ptr<ReadbackPool> readbacks;
  std::shared_ptr<int> graphs = std::make_shared<int>(0);  ///< number of graphs alive or being captured; each graph keeps it alive, beyond the Gpu
  std::map<std::type_index, std::shared_ptr<void>> libraries;
};

/// Returns its slot when the last handle is destroyed. It keeps the pool alive, so handles may outlive the Gpu.
struct Gpu::Readback::State {
  State(std::shared_ptr<ReadbackPool> from_pool, ReadbackPool::Slot* of_slot) : pool(std::move(from_pool)), slot(of_slot) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { pool->give_back(slot); }

  const std::shared_ptr<ReadbackPool> pool;
  ReadbackPool::Slot* const slot;
};

}  // namespace trireme::cuda
