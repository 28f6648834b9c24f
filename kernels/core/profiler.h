#pragma once
// Named ranges of host code for profilers of GPUs (NVTX; Nsight Systems shows them above the kernels that they queue). This header includes none of
// CUDA's. A build without CUDA links stub.cpp, whose functions do nothing.
#include <string>

#include "kernels/core/context.h"

namespace trireme {
namespace cuda {

/// True if a profiler has attached to this process before the first call.
bool is_profiled();
void open_profiler_range(const char* name);  ///< copies the name
void close_profiler_range();                 ///< the innermost open range of this thread

}  // namespace cuda

/// Scope guard: a range of the domain "trireme", if `ctx` computes on a GPU and a profiler is attached. Otherwise the name is not even composed.
class ProfilerRange {
 public:
  template <class Name>
  ProfilerRange(const Context& ctx, const Name& name) : open_(ctx.device == Device::kCuda && cuda::is_profiled()) {
    if (open_) cuda::open_profiler_range(std::string(name()).c_str());
  }
  ~ProfilerRange() {
    if (open_) cuda::close_profiler_range();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  bool open_;
};

}  // namespace trireme
