#pragma once
// The GPU of the tests: the simulated machine of tests/cuda_sim, or a real one in a program compiled with TRIREME_REAL_GPU and linked with the real
// runtime.
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/core/gpu.h"

#ifndef TRIREME_REAL_GPU
#include "tests/cuda_sim/cuda_sim.h"
#endif

namespace trireme::testing {

#ifdef TRIREME_REAL_GPU
constexpr bool kSimulatedGpu = false;
#else
constexpr bool kSimulatedGpu = true;
#endif

/// GPU 0, created by the first call and kept until the program ends; only for the thread of the first call.
cuda::Gpu& test_gpu();

/// Calls body n times, each time with a different seed, which determines the order in which the simulated machine runs the threads of a block and the
/// operations of its streams. On a real machine the order cannot be set, and body is called once.
inline void for_each_schedule(int n, const std::function<void()>& body) {
#ifdef TRIREME_REAL_GPU
  static_cast<void>(n);
  body();
#else
  for (int seed = 0; seed < n; ++seed) {
    cuda_sim::set_seed(static_cast<uint64_t>(seed));
    body();
  }
#endif
}

/// The errors that the simulated machine found in the kernels and operations it ran, one line each; "" if there are none.
inline std::string gpu_errors() {
  std::string text;
#ifndef TRIREME_REAL_GPU
  for (const std::string& error : cuda_sim::errors()) text += "\n" + error;
#endif
  return text;
}

}  // namespace trireme::testing
