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

/// The device switch. `fast` is the kernel of kernels/cpu, which computes in fp32; `reference(T{})` the template of kernels/reference. The meta
/// device is done once the shapes are checked.
template <class Fast, class Reference>
void on_device(const Context& ctx, DType dtype, Fast&& fast, Reference&& reference) {
  switch (ctx.device) {
    case Device::kMeta: return;
    case Device::kCpu:
      if constexpr (kFastCpu) {
        if (dtype == DType::kF32) return fast();
      }
      [[fallthrough]];
    case Device::kReference: return dispatch_float(dtype, reference);
  }
}

/// For operations too small to have a fast kernel.
template <class Reference>
void on_device(const Context& ctx, DType dtype, Reference&& reference) {
  if (ctx.device != Device::kMeta) dispatch_float(dtype, reference);
}

}  // namespace trireme
