#pragma once
// Helpers shared by the tests of the simulated machine.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/kernels_under_test.h"
#include "tests/cuda_sim/random.h"
#include "tests/support/catch.h"

#define CUDA_OK(call) REQUIRE((call) == cudaSuccess)

class TestStream {
 public:
  TestStream() { CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  TestEvent() { CUDA_OK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~TestEvent() { cudaEventDestroy(event_); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) { CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory_), n * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    CUDA_OK(cudaMemcpy(memory_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return memory_; }
  std::vector<T> host() const {
    std::vector<T> values(n_);
    CUDA_OK(cudaMemcpy(values.data(), memory_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t n_;
  T* memory_ = nullptr;
};

/// Runs `body` in a child process and returns its error. A crash (AddressSanitizer stops at the first error) counts as cudaErrorIllegalAddress.
inline cudaError_t run_in_child(const std::function<cudaError_t()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr) std::_Exit(255);
    cuda_sim::reset();
    const cudaError_t error = body();
    std::_Exit(error == cudaSuccess ? 0 : error == cudaErrorIllegalAddress ? 1 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return cudaErrorIllegalAddress;
  return WEXITSTATUS(status) == 0 ? cudaSuccess : WEXITSTATUS(status) == 2 ? cudaErrorUnknown : cudaErrorIllegalAddress;
}
