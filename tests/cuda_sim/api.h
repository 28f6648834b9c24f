#pragma once
// Shared by the simulated functions of the CUDA runtime.
#include "tests/cuda_sim/state.h"

namespace cuda_sim {

/// The thread's last error, for cudaGetLastError; returns its argument.
cudaError_t remember(cudaError_t error);
int current_device();
/// Shared memory of a block that a kernel may opt in to, bytes: CUDA C++ Programming Guide, technical specifications per compute capability.
size_t shared_optin(const Options& options);
std::unique_ptr<Operation> make_simple(std::string name, std::function<void()> body);

/// Queues the operation on the stream, ordered by its default stream, or adds it to the graph that the stream captures. Requires the lock.
void queue(Stream& stream, std::unique_ptr<Operation> operation);
/// Invalidates a capture of this thread because of a call that cannot be captured. Requires the lock.
cudaError_t refuse_while_capturing();

/// Runs `body` as a call of the runtime: under the lock, and rejected if the device has failed.
template <class Body>
cudaError_t call(Body&& body) {
  Machine& m = machine();
  Lock lock(m.mutex);
  const auto device = static_cast<size_t>(current_device());
  if (m.options.driver_version == 0) return remember(cudaErrorInsufficientDriver);
  if (device >= m.devices.size()) return remember(cudaErrorNoDevice);
  if (m.devices[device].error != cudaSuccess) return remember(m.devices[device].error);
  const cudaError_t error = body(m, lock);
  if (error == cudaSuccess && m.devices[device].error != cudaSuccess) return remember(m.devices[device].error);
  return remember(error);
}

template <class T>
uintptr_t key(T* handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

}  // namespace cuda_sim
