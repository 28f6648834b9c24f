#pragma once
// Inside of the simulated machine, for the simulated libraries (cuBLASLt, NCCL): operations on streams. Nothing runs when queued; some thread that waits
// runs it later, in an adversarial order that respects streams and events.
//
// A kernel-like operation:      cuda_sim::enqueue(stream, "matmul", [=] { ... reads and writes device memory ... });
// Operations that meet (a collective): every part is an Operation on its own stream with all_devices() true. `arrive` puts the part into the
// communicator's state when it is at the head of its stream with all event waits done (so its inputs are final, and stay so until it has run); `ready`
// says whether all parts it needs have arrived; the first `run` computes from all parts' inputs and keeps what the others' `run` will write. A part is
// finished for its stream when its own `run` returns. Parts of one thread's streams run in any order, so no part may wait inside `run`.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace cuda_sim {

class Operation {
 public:
  virtual ~Operation() = default;
  /// For reports of deadlocks and errors: say the parameters that matter.
  virtual std::string name() const = 0;
  /// A fresh, not yet arrived copy: what a captured graph queues at every launch.
  virtual std::unique_ptr<Operation> clone() const = 0;
  /// Once, when at the head of its stream with all event waits done. The machine's lock is held: call nothing of this header but changed() and fail().
  virtual void arrive() {}
  /// Asked again and again after arrive(), under the lock.
  virtual bool ready() { return true; }
  /// Once. No lock held; device memory may be read and written: of the stream's own device, of every device where all_devices().
  virtual void run() = 0;
  /// Runs while no other operation runs anywhere. (Operations of different devices may otherwise run at the same time, one a device.)
  virtual bool all_devices() const { return false; }
};

/// Queues at the end of a stream, or into the graph that the stream is capturing. Errors: cudaErrorInvalidResourceHandle for a stream that is not one;
/// the sticky error of the stream's device.
cudaError_t enqueue(cudaStream_t stream, std::unique_ptr<Operation> operation);
cudaError_t enqueue(cudaStream_t stream, const std::string& name, std::function<void()> body);

int current_device();                    ///< of this thread
int device_of(cudaStream_t stream);      ///< -1: no such stream
bool is_capturing(cudaStream_t stream);  ///< into a graph
/// [memory, memory + bytes) lies in one live allocation of that device (or in none of it where bytes is 0).
bool is_device_memory(const void* memory, size_t bytes, int device);
/// The device whose allocation holds the byte; -1: none.
int device_of_memory(const void* memory);

/// An error of the device, as of a kernel that faulted: sticky (returned by its next calls, its later operations do not run), one line on stderr, kept
/// for cuda_sim::errors().
void fail(int device, cudaError_t error, const std::string& what);

/// The lock under which arrive() and ready() are called; for a library's state that other threads change. Never hold it while calling enqueue().
std::mutex& machine_mutex();
/// What ready() looks at was changed by other means than an operation (an abort): threads that wait look again. With or without the lock held.
void changed();

}  // namespace cuda_sim
