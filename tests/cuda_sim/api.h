#pragma once
// Common to the CUDA runtime's functions.
#include "tests/cuda_sim/state.h"

namespace cuda_sim {

/// The thread's last error, for cudaGetLastError; returns its argument.
cudaError_t remember(cudaError_t error);
int current_device();
std::unique_ptr<Operation> make_simple(std::string name, std::function<void()> body);

/// Into the stream's queue behind its default stream's order, or into the graph that it captures. Under the lock.
void queue(Stream& stream, std::unique_ptr<Operation> operation);
/// Breaks a capture of this thread by a call that cannot be captured. Under the lock.
cudaError_t refuse_while_capturing();

/// A call of the runtime: under the lock, refused on a device that has failed.
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
