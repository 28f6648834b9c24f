#pragma once
// Interface of the simulated machine for the simulated libraries (cuBLASLt, NCCL): operations on streams. Queued operations do not run immediately; a
// thread that waits runs them later, in an adversarial order that respects streams and events.
//
// A kernel-like operation: cuda_sim::enqueue(stream, "matmul", [=] { ... reads and writes device memory ... });
// Operations that synchronise (a collective): every part is an Operation on its own stream with all_devices() true. `arrive` registers the part in
// the communicator's state when it is at the head of its stream with all event waits done (so its inputs are final until it has run). `ready` returns
// whether all parts it needs have arrived. The first `run` computes from all parts' inputs and keeps the results that the others' `run` will write. A
// part is finished for its stream when its own `run` returns. Parts of one thread's streams run in any order, so no part may wait inside `run`.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace cuda_sim {

class Operation {
 public:
  virtual ~Operation() = default;
  /// For reports of deadlocks and errors; should include the relevant parameters.
  virtual std::string name() const = 0;
  /// Returns a fresh copy that has not arrived. A captured graph queues one at every launch.
  virtual std::unique_ptr<Operation> clone() const = 0;
  /// Called once, at the head of its stream with all event waits done. The machine's lock is held: call only changed() and fail().
  virtual void arrive() {}
  /// Called repeatedly after arrive(), under the lock.
  virtual bool ready() { return true; }
  /// Called once, without the lock. May access the memory of the stream's device, or of every device if all_devices().
  virtual void run() = 0;
  /// Seconds that it takes on the machine's own clock, if that is not Options::operation_seconds.
  virtual std::optional<double> own_seconds() const { return std::nullopt; }
  /// True: runs while no other operation runs. (Otherwise, operations of different devices may run concurrently, one per device.)
  virtual bool all_devices() const { return false; }
};

/// Queues at the end of a stream, or adds to the graph that the stream is capturing. Errors: cudaErrorInvalidResourceHandle for an invalid stream;
/// the sticky error of the stream's device.
cudaError_t enqueue(cudaStream_t stream, std::unique_ptr<Operation> operation);
cudaError_t enqueue(cudaStream_t stream, const std::string& name, std::function<void()> body);

int current_device();                    ///< of this thread
bool has_mig();                          ///< Options::mig
bool is_refused_at_random();             ///< drawn from the seed with the probability Options::refused_products
int device_of(cudaStream_t stream);      ///< -1: no such stream
bool is_capturing(cudaStream_t stream);  ///< into a graph
/// True if [memory, memory + bytes) lies in one live allocation of that device, or if `bytes` is 0.
bool is_device_memory(const void* memory, size_t bytes, int device);
/// The device whose allocation contains the byte; -1: none.
int device_of_memory(const void* memory);

/// Reports an error of the device, as after a faulting kernel. It is sticky (later calls return it, later operations of the device do not run),
/// printed as one line on stderr and kept for cuda_sim::errors().
void fail(int device, cudaError_t error, const std::string& what);

/// The lock under which arrive() and ready() are called; also for library state that other threads change. Never hold it while calling enqueue().
std::mutex& machine_mutex();
/// Call it when the state that ready() reads changes other than by an operation (an abort): waiting threads check again. The lock may be held.
void changed();

}  // namespace cuda_sim
