#pragma once
// What every operation does before it computes: check its operands once, then choose the engine. Internal to kernels/ops.
#include <initializer_list>

#include "kernels/core/tensor.h"

namespace trireme {

#ifdef TRIREME_FAST_CPU
constexpr bool kFastCpu = true;
#else
constexpr bool kFastCpu = false;
#endif
#ifdef TRIREME_CUDA
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

struct Operand {
  const char* name;
  const Tensor& tensor;
  Shape shape;
  DType dtype;
};

/// Every operand is defined and has exactly this shape and dtype.
inline void expect(const char* operation, std::initializer_list<Operand> operands) {
  for (const Operand& operand : operands) {
    const Tensor& tensor = operand.tensor;
    TRIREME_CHECK(tensor.defined(), operation, ": ", operand.name, " is undefined");
    TRIREME_CHECK(tensor.shape() == operand.shape && tensor.dtype() == operand.dtype, operation, ": ", operand.name, " is ", name_of(tensor.dtype()),
                  " ", tensor.shape().str(), ", expected ", name_of(operand.dtype), " ", operand.shape.str());
  }
}

/// The engine of kernels/cpu for an operation: its kernel, and whether that takes bf16 and fp16 beside fp32.
template <class Kernel>
struct FastCpu {
  Kernel kernel;
  bool narrow = false;
};
template <class Kernel>
FastCpu(Kernel) -> FastCpu<Kernel>;
template <class Kernel>
FastCpu(Kernel, bool) -> FastCpu<Kernel>;

/// The device switch. `cuda()` is the kernel of kernels/cuda, `fast.kernel()` that of kernels/cpu, `reference(T{})` the template of kernels/reference
/// for every dtype the fast one does not take. The meta device is done once the shapes are checked.
template <class Cuda, class Fast, class Reference>
void on_device(const Context& ctx, DType dtype, Cuda&& cuda, FastCpu<Fast> fast, Reference&& reference) {
  switch (ctx.device) {
    case Device::kMeta: return;
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda();
      throw InternalError("this build has no CUDA kernels");
    case Device::kCpu:
      if constexpr (kFastCpu) {
        if (dtype == DType::kF32 || (size_of(dtype) == 2 && fast.narrow)) return fast.kernel();
      }
      [[fallthrough]];
    case Device::kReference: return dispatch_float(dtype, reference);
  }
}

/// For operations too small to have a fast CPU kernel.
template <class Cuda, class Reference>
void on_device(const Context& ctx, DType dtype, Cuda&& cuda, Reference&& reference) {
  on_device(ctx, dtype, cuda, FastCpu{[&] { dispatch_float(dtype, reference); }}, reference);
}

}  // namespace trireme
