#pragma once
// Memory of one rank, counted by category. The same code allocates in a run and only counts on the meta device, so a memory forecast cannot differ
// from the run.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

namespace cuda {
class Gpu;
}

/// The engine (backend) that computes. kMeta checks shapes and counts memory without allocating any.
enum class Device : uint8_t {
  kReference,  ///< naive single-thread loops in float and double: the oracle, and the engine of `precision: fp64`
  kCpu,        ///< library GEMM, OpenMP and SIMD for the rest; fp32
  kCuda,       ///< a GPU: fp32, bf16 and fp16; operations are queued on one compute stream and the host does not wait for them
  kMeta,       ///< no memory, no arithmetic: shapes, bytes and order only
};

enum class MemoryCategory : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kWorkspace, kCommunication, kData };
constexpr int kMemoryCategories = 7;
const char* name_of(MemoryCategory category);

/// What a rank is doing when it allocates.
enum class MemoryPhase : uint8_t {
  kLoad,        ///< setup, and reading of a checkpoint; the initial phase of an arena
  kForward,     ///< forward pass of a training step, with its gathers and receives
  kBackward,    ///< backward pass, with its reductions
  kOptimizer,   ///< gradient norm and update
  kEvaluation,  ///< evaluation, and anything else that runs only forward passes
  kSave,        ///< copying of state for a checkpoint, or its comparison with other ranks
};
constexpr int kMemoryPhases = 6;
const char* name_of(MemoryPhase phase);

/// Caching allocator: hands out 64-byte aligned buffers and reuses returned ones, so that from the third training step on nothing is allocated from
/// the system. Counts exactly the requested bytes, without rounding. Not thread-safe: an arena belongs to one rank.
class Arena {
 public:
  /// `poison`: fresh and reused memory is filled with 0xFF bytes (NaN in every float format), so that reads of uninitialised memory show up.
  explicit Arena(Device device, bool poison = false);
  /// Memory of a GPU. Buffers are reused in the order of its compute stream: an operation on another stream must keep its buffers until the compute
  /// stream has been ordered after it (Work::wait).
  /// `caching` = false: each buffer is a stream-ordered allocation of its own, which is freed when it is returned. A memory checker then finds accesses
  /// beyond a buffer and after its return. Such an arena cannot be used within a graph capture.
  explicit Arena(cuda::Gpu& gpu, bool poison = false, bool caching = true);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The buffer returns to the arena when its last handle is destroyed; it may outlive the Arena object. On kMeta the pointer is null, and the bytes
  /// are still counted.
  std::shared_ptr<void> allocate(int64_t bytes, MemoryCategory category);

  /// Allocates `bytes` from the system at once; later buffers are taken from it until it is used up. With the system_bytes() of the same program on
  /// kMeta as size, a run needs no further system allocation.
  void reserve(int64_t bytes);
  /// The same with memory of another allocator, which the arena and its buffers keep alive.
  void reserve(std::shared_ptr<void> memory, int64_t bytes);

  Device device() const;
  int64_t current_bytes(MemoryCategory category) const;
  int64_t peak_bytes(MemoryCategory category) const;
  int64_t peak_bytes() const;  ///< peak of the sum over categories
  /// Starts a phase, which lasts until the next call. Memory that is already allocated counts towards its peaks.
  void set_phase(MemoryPhase phase);
  int64_t peak_bytes(MemoryPhase phase) const;  ///< peak of the sum over categories; 0 if the phase has not run
  int64_t peak_bytes(MemoryPhase phase, MemoryCategory category) const;
  void reset_peak();
  /// Number of allocations from the system; constant over steps once the caches are warm.
  int64_t system_allocations() const;
  /// Bytes taken from the system so far, after rounding and reuse: the size of a sufficient reserve. Also counted on kMeta.
  int64_t system_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
