// The table of one level.
#include "kernels/cpu/isa/kernels.h"

#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class T>
constexpr TypedKernels<T> kTyped{
    .norm_forward = norm_forward<T>,
    .norm_backward_input = norm_backward_input<T>,
    .norm_backward_weight = norm_backward_weight<T>,
};

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels{
    .f32 = kTyped<float>,
    .bf16 = kTyped<bfloat16>,
    .f16 = kTyped<float16>,
};

}  // namespace trireme::cpu::TRIREME_ISA
