#pragma once
// Memory of one rank, by category. The same code that allocates for real counts on the meta device, so a forecast cannot drift from the run.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

namespace cuda {
class Gpu;
}

/// Which engine computes. kMeta checks shapes and counts memory without touching any.
enum class Device : uint8_t {
  kReference,  ///< naive single-thread loops in float and double: the oracle, and the engine of `precision: fp64`
  kCpu,        ///< library GEMM, OpenMP and SIMD for the rest; fp32
  kCuda,       ///< a GPU: fp32, bf16 and fp16; operations are queued on one compute stream and the host does not wait for them
  kMeta,       ///< no memory, no arithmetic: shapes, bytes and order only
};

enum class MemoryCategory : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kWorkspace, kCommunication, kData };
constexpr int kMemoryCategories = 7;
const char* name_of(MemoryCategory category);

/// What a rank is doing when memory is asked for.
enum class MemoryPhase : uint8_t {
  kLoad,        ///< sets up, and reads a state; an arena begins with it
  kForward,     ///< of a training step, and of what it gathers and receives on the way
  kBackward,    ///< and of what it reduces
  kOptimizer,   ///< gradient norm and update
  kEvaluation,  ///< and whatever else runs forward only
  kSave,        ///< copies what is held out, or compares it with other ranks
};
constexpr int kMemoryPhases = 6;
const char* name_of(MemoryPhase phase);

/// Hands out 64-byte aligned buffers and takes them back for reuse, so that a training step after the second asks the system for nothing.
/// Counts exactly the bytes asked for (not the rounding). Not thread-safe: an arena belongs to one rank.
class Arena {
 public:
  /// `poison`: fresh and reused memory is filled with 0xFF bytes (NaN in every float format), so an uninitialised read shows.
  explicit Arena(Device device, bool poison = false);
  /// Memory of a GPU; buffers are reused in the order of its compute stream, which an operation on another stream must be ordered before (Work::wait)
  /// while it still holds its buffers.
  explicit Arena(cuda::Gpu& gpu, bool poison = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The buffer returns to the arena with its last handle; it may outlive the Arena object. On kMeta the pointer is null but still counted.
  std::shared_ptr<void> allocate(int64_t bytes, MemoryCategory category);

  /// Takes `bytes` from the system at once; later buffers come out of them while they last. Sized by the system_bytes of a run of the same program on
  /// kMeta, a run asks the system for nothing more.
  void reserve(int64_t bytes);

  Device device() const;
  int64_t current_bytes(MemoryCategory category) const;
  int64_t peak_bytes(MemoryCategory category) const;
  int64_t peak_bytes() const;  ///< peak of the sum over categories
  /// From here on until the next call is this phase. What is held when it begins counts in its peaks.
  void set_phase(MemoryPhase phase);
  int64_t peak_bytes(MemoryPhase phase) const;  ///< of the sum over categories; 0 of a phase that never was
  int64_t peak_bytes(MemoryPhase phase, MemoryCategory category) const;
  void reset_peak();
  /// Times the system was asked for memory; constant over steps once the caches are warm.
  int64_t system_allocations() const;
  /// Bytes needed so far with every rounding, reuse counted: what a reserve must hold. On kMeta too.
  int64_t system_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
