#pragma once
// Memory of one rank, by category. The same code that allocates for real counts on the meta device, so a forecast cannot drift from the run.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

/// Which engine computes. kMeta checks shapes and counts memory without touching any.
enum class Device : uint8_t {
  kReference,  ///< naive single-thread loops in float and double: the oracle, and the engine of `precision: fp64`
  kCpu,        ///< library GEMM, OpenMP and SIMD for the rest; fp32
  kMeta,       ///< no memory, no arithmetic: shapes, bytes and order only
};

enum class MemoryCategory : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kWorkspace, kCommunication, kData };
constexpr int kMemoryCategories = 7;
const char* name_of(MemoryCategory category);

/// Hands out 64-byte aligned buffers and takes them back for reuse, so that a training step after the second asks the system for nothing.
/// Counts exactly the bytes asked for (not the rounding). Not thread-safe: an arena belongs to one rank.
class Arena {
 public:
  /// `poison`: fresh and reused memory is filled with 0xFF bytes (NaN in every float format), so an uninitialised read shows.
  explicit Arena(Device device, bool poison = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The buffer returns to the arena with its last handle; it may outlive the Arena object. On kMeta the pointer is null but still counted.
  std::shared_ptr<void> allocate(int64_t bytes, MemoryCategory category);

  Device device() const;
  int64_t current_bytes(MemoryCategory category) const;
  int64_t peak_bytes(MemoryCategory category) const;
  int64_t peak_bytes() const;  ///< peak of the sum over categories
  void reset_peak();
  /// Times the system was asked for memory; constant over steps once the caches are warm.
  int64_t system_allocations() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
