#pragma once
// One GPU as one rank uses it, behind a header without CUDA's own: memory, the compute stream, events, pinned staging. A build without CUDA links
// stub.cpp, which throws.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct CUstream_st;
struct CUevent_st;

namespace trireme::cuda {

using Stream = CUstream_st*;  ///< cudaStream_t
using Event = CUevent_st*;    ///< cudaEvent_t

struct GpuOptions {
  bool tf32 = false;  ///< fp32 products on tensor cores with 10 bits of mantissa: only when asked for
};

struct GpuProperties {
  std::string name;
  std::string pci;           ///< "0000:17:00": which of the host's GPUs it is
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int64_t memory = 0;           ///< bytes
  int driver = 0, runtime = 0;  ///< CUDA versions, 13000 = 13.0
};

/// GPUs this process sees. Errors: ConfigError saying why none can be used (no driver, driver too old).
int gpu_count();
GpuProperties gpu_properties(int index);

class Gpu {
 public:
  static constexpr int kOldest = 80;                           ///< compute capability times ten: bf16 tensor cores, asynchronous copies
  static constexpr int64_t kScratchBytes = int64_t{32} << 20;  ///< for partial results of one kernel

  /// Makes `index` this thread's device and takes stream, scratch and staging memory. Errors: ConfigError where there is no such device, it is older than
  /// kOldest, or its memory is taken.
  Gpu(int index, const GpuOptions& options);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuProperties& properties() const;
  const GpuOptions& options() const;
  int index() const;
  /// Where every kernel and copy below is queued.
  Stream compute() const;

  /// Device memory, 256-byte aligned. Errors: ConfigError naming what was asked for and what is free.
  void* allocate(int64_t bytes);
  void release(void* memory);  ///< waits for the compute stream; never throws
  int64_t free_bytes() const;
  /// For one operation: the next one queued on the compute stream may use it again. At most kScratchBytes.
  void* scratch(int64_t bytes) const;

  void fill_bytes(void* memory, int value, int64_t bytes);
  void copy(const void* from, void* to, int64_t bytes);  ///< within the device
  /// From any host memory, through a pinned ring: returns when `host` may be written again, without waiting for the copy itself (the host waits only when
  /// the ring is full of copies not yet made).
  void upload(const void* host, void* device, int64_t bytes);
  /// To any host memory; waits for everything queued before.
  void download(const void* device, void* host, int64_t bytes);
  void synchronize();

  /// A few values on their way to the host.
  class Readback {
   public:
    Readback() = default;
    bool ready() const;        ///< never waits
    const void* wait() const;  ///< pinned memory, until the Readback goes
    struct State;
    std::shared_ptr<State> state;
  };
  /// Queues a copy of at most 4096 bytes; reading waits for that copy only.
  Readback read_back(const void* device, int64_t bytes);

  /// A further stream of this device (a communicator's), and events that order streams; events are reused, `record` returns one that stays valid until
  /// it is returned. High priority: ahead of compute where both have blocks ready.
  Stream make_stream();
  Event record(Stream stream);                   ///< now, at the end of what is queued there
  void order_after(Stream stream, Event event);  ///< what is queued on `stream` from now on waits for the event; the host does not
  bool is_done(Event event) const;               ///< never waits
  void recycle(Event event);

  /// Operations as one thing to launch: at each launch they run again with the arguments they had, in the order they were queued in.
  struct Graph {
    std::shared_ptr<void> executable;
    bool defined() const { return executable != nullptr; }
  };
  /// What `body` queues on the compute stream, and on streams ordered behind it and before its end, without running any of it. The body must not wait for
  /// the device.   Errors: InternalErrors of CUDA, and those of the body.
  Graph capture(const std::function<void()>& body);
  void launch(const Graph& graph);
  /// A capture is under way, or a Graph lives: what it uses of a library (NCCL's communicators) must not be destroyed.
  bool holds_graphs() const;

  struct State;
  State& state() const { return *state_; }  ///< for kernels/cuda: library handles

 private:
  std::unique_ptr<State> state_;
};

}  // namespace trireme::cuda
