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

/// True if this machine has a GPU for each of `needed`; otherwise a warning names `what` as not run. A simulated machine has eight.
bool has_gpus(int needed, const std::string& what);

/// Frees everything on the simulated machine and sets its seed; does nothing on a real one.
inline void reset_gpus(uint64_t seed) {
#ifdef TRIREME_REAL_GPU
  static_cast<void>(seed);
#else
  cuda_sim::reset(seed);
#endif
}

/// Sets the seed that determines the order of the simulated machine's operations; does nothing on a real one.
inline void set_schedule(uint64_t seed) {
#ifdef TRIREME_REAL_GPU
  static_cast<void>(seed);
#else
  cuda_sim::set_seed(seed);
#endif
}

/// Calls body n times, each time with a different seed, which determines the order in which the simulated machine runs the threads of a block and the
/// operations of its streams. On a real machine the order cannot be set, and body is called once.
inline void for_each_schedule(int n, const std::function<void()>& body) {
  for (int seed = 0; seed < (kSimulatedGpu ? n : 1); ++seed) {
    set_schedule(static_cast<uint64_t>(seed));
    body();
  }
}

#ifndef TRIREME_REAL_GPU
/// Changes options of the simulated machine for its lifetime, without a reset.
class OptionsScope {
 public:
  explicit OptionsScope(const std::function<void(cuda_sim::Options&)>& change) : before_(cuda_sim::options()) {
    cuda_sim::Options changed = before_;
    change(changed);
    cuda_sim::change_options(changed);
  }
  ~OptionsScope() { cuda_sim::change_options(before_); }
  OptionsScope(const OptionsScope&) = delete;
  OptionsScope& operator=(const OptionsScope&) = delete;

 private:
  cuda_sim::Options before_;
};
#endif

/// Calls body with the rounding of a GPU's tensor cores and approximate functions on the simulated machine; does nothing on a real one, where they
/// always round so.
inline void with_hardware_rounding([[maybe_unused]] const std::function<void()>& body) {
#ifndef TRIREME_REAL_GPU
  const OptionsScope scope([](cuda_sim::Options& options) { options.hardware_rounding = true; });
  body();
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
