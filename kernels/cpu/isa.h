#pragma once
// Selects and runs the loop of an operation of kernels/cpu, by the dtype of its tensors and by the instruction-set level and threads of its context.
#include "kernels/core/tensor.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/parallel.h"

namespace trireme::cpu {

/// body(T{}) with T = float, bfloat16 or float16.
template <class Body>
void dispatch_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kBF16: return body(bfloat16{});
    case DType::kF16: return body(float16{});
    default: throw InternalError(concat("kernels/cpu does not support dtype ", name_of(dtype)));
  }
}

template <class T>
const TypedKernels<T>& typed_kernels(const Context& ctx) {
  return kernels_of(ctx.isa).of<T>();
}

/// Runs `kernel` on items [0, count) of `arguments`, split among the threads in multiples of `grain` items.
template <class Arguments>
void run_kernel(const Context& ctx, RangeKernel<Arguments> kernel, const Arguments& arguments, int64_t count, int64_t grain) {
  parallel_for(ctx, count, grain, [kernel, &arguments](int64_t begin, int64_t end) { kernel(arguments, begin, end); });
}

/// The tensor's data, or null if it is undefined.
template <class T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace trireme::cpu
