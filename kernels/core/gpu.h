#pragma once
// One GPU as used by one rank: memory, the compute stream, events, pinned staging. This header includes none of CUDA's. A build without CUDA links
// stub.cpp, whose functions throw.
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
  bool tf32 = false;  ///< fp32 matrix products on tensor cores with 10 mantissa bits; off by default
  /// Multiprocessors that matrix products leave free while communicates(); less than the GPU has.
  int communication_multiprocessors = 0;
  bool cudnn_attention = false;                ///< attention by cuDNN where it supports the shape and gives the built-in kernels' results
  int64_t cudnn_workspace = int64_t{1} << 30;  ///< limit of the workspace of its backward, bytes; a forecast of memory assumes the default
};

struct GpuProperties {
  std::string name;
  std::string pci;           ///< PCI address, "0000:17:00"
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int64_t memory = 0;           ///< bytes
  int driver = 0, runtime = 0;  ///< CUDA versions, 13000 = 13.0
};

/// Number of GPUs visible to this process. Errors: ConfigError with the reason if none can be used (no driver, driver too old).
int gpu_count();
GpuProperties gpu_properties(int index);

class Gpu {
 public:
  static constexpr int kMinComputeCapability = 80;             ///< lowest compute capability, times ten: bf16 tensor cores, asynchronous copies
  static constexpr int64_t kScratchBytes = int64_t{32} << 20;  ///< for partial results of one kernel

  /// Makes `index` this thread's device and allocates its stream, scratch and staging memory. Errors: ConfigError if the device does not exist, is
  /// older than kMinComputeCapability, or has too little free memory.
  Gpu(int index, const GpuOptions& options);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuProperties& properties() const;
  const GpuOptions& options() const;
  int index() const;
  /// The stream on which every kernel and copy below is queued.
  Stream compute() const;

  /// Device memory, 256-byte aligned. Errors: ConfigError with the requested and the free bytes.
  void* allocate(int64_t bytes);
  void release(void* memory);  ///< waits for the compute stream; never throws
  /// Stream-ordered memory: work queued on the compute stream between the two calls may use it. Errors: InternalError from CUDA.
  void* allocate_async(int64_t bytes);
  void release_async(void* memory);  ///< never waits and never throws
  int64_t free_bytes() const;
  /// Scratch memory of one operation: the next one queued on the compute stream may overwrite it. At most kScratchBytes.
  void* scratch(int64_t bytes) const;
  /// A counter on the device for one operation at a time. It is zero before each kernel, and a kernel that counts with it leaves zero behind.
  uint32_t* ticket() const;

  void fill_bytes(void* memory, int value, int64_t bytes);
  void copy(const void* from, void* to, int64_t bytes);  ///< within the device
  /// Copies from any host memory through a pinned ring buffer. Returns when `host` may be overwritten, without waiting for the copy itself (it blocks
  /// only while the ring is full of pending copies).
  void upload(const void* host, void* device, int64_t bytes);
  /// Copies to any host memory; waits for all work queued before.
  void download(const void* device, void* host, int64_t bytes);
  void synchronize();

  /// A pending copy of a few values to the host.
  class Readback {
   public:
    Readback() = default;
    bool ready() const;        ///< never waits
    const void* wait() const;  ///< pinned memory, valid as long as the Readback
    struct State;
    std::shared_ptr<State> state;
  };
  /// Queues a copy of at most 4096 bytes; Readback::wait() waits for that copy only.
  Readback read_back(const void* device, int64_t bytes);

  /// Additional streams of this device (for communicators), and events that order streams. The streams have high priority: they run ahead of compute
  /// if both have blocks ready. Events are pooled: the event of record() is valid until recycle().
  Stream make_stream();
  Event record(Stream stream);                   ///< behind all work queued on `stream` so far
  void order_after(Stream stream, Event event);  ///< later work on `stream` waits for the event; the host does not
  bool is_done(Event event) const;               ///< never waits
  void recycle(Event event);
  /// Brackets an operation on another stream whose kernels may run beside those that are queued on the compute stream between the two calls.
  void begin_communication();
  void end_communication();
  bool communicates() const;

  /// Events with a time stamp, from a second pool: valid until recycle_time().
  Event record_time(Stream stream);                       ///< behind all work queued on `stream` so far; never waits
  double seconds_between(Event first, Event last) const;  ///< waits for both; CUDA's resolution is 0.5 microseconds
  void recycle_time(Event event);

  /// A captured CUDA graph: each launch runs its operations again, with the captured arguments and in the order in which they were queued.
  struct Graph {
    std::shared_ptr<void> executable;
    bool defined() const { return executable != nullptr; }
  };
  /// Captures what `body` queues on the compute stream, and on streams that fork from it and join it again, without running it. The body must not
  /// wait for the device.   Errors: InternalError from CUDA, and the errors of the body.
  Graph capture(const std::function<void()>& body);
  void launch(const Graph& graph);
  /// True during a capture and while a Graph exists: library objects that it uses (NCCL communicators) must not be destroyed.
  bool holds_graphs() const;

  struct State;
  State& state() const { return *state_; }  ///< for kernels/cuda: library handles

 private:
  std::unique_ptr<State> state_;
};

}  // namespace trireme::cuda
