// The kernel table of one instruction-set level.
#include "kernels/cpu/isa/kernels.h"

#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class From, class To>
constexpr RangeKernel<Convert<From, To>> converter() {
  if constexpr (std::is_same_v<From, To>)
    return nullptr;
  else
    return convert<From, To>;
}

template <class T>
constexpr TypedKernels<T> kTyped{
    .norm_forward = norm_forward<T>,
    .norm_backward_input = norm_backward_input<T>,
    .norm_backward_weight = norm_backward_weight<T>,
    .swiglu_forward = swiglu_forward<T>,
    .geglu_forward = geglu_forward<T>,
    .geglu_erf_forward = geglu_erf_forward<T>,
    .swiglu_backward = swiglu_backward<T>,
    .geglu_backward = geglu_backward<T>,
    .geglu_erf_backward = geglu_erf_backward<T>,
    .gelu_forward = gelu_forward<T>,
    .gelu_erf_forward = gelu_erf_forward<T>,
    .gelu_backward = gelu_backward<T>,
    .gelu_erf_backward = gelu_erf_backward<T>,
    .rope = rope<T>,
    .attention_decode = attention_decode<T>,
    .bias_forward = bias_forward<T>,
    .bias_backward = bias_backward<T>,
    .embedding_backward = embedding_backward<T>,
    .to_f32 = converter<T, float>(),
    .to_bf16 = converter<T, bfloat16>(),
    .to_f16 = converter<T, float16>(),
    .add = add<T>,
    .scale = scale<T>,
    .accumulate = accumulate<T>,
    .dropout = dropout<T>,
    .cross_entropy_sums = cross_entropy_sums<T>,
    .cross_entropy_backward = cross_entropy_backward<T>,
    .sum_of_squares = sum_of_squares<T>,
};

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels{
    .f32 = kTyped<float>,
    .bf16 = kTyped<bfloat16>,
    .f16 = kTyped<float16>,
    .adamw = adamw,
    .encode_blocks = encode_blocks,
    .decode_blocks = decode_blocks,
};

}  // namespace trireme::cpu::TRIREME_ISA
