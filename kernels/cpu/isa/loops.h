#pragma once
// Declarations of the loops of one level: the files of this folder define them, and kernels.cpp collects them in a table. Arguments: kernels.h.
#include "kernels/cpu/isa/kernels.h"

/// Instantiates a loop for its three types; used at the end of the file that defines it.
#define TRIREME_INSTANCES(loop, Arguments)                                    \
  template void loop<float>(const Arguments<float>&, int64_t, int64_t);       \
  template void loop<bfloat16>(const Arguments<bfloat16>&, int64_t, int64_t); \
  template void loop<float16>(const Arguments<float16>&, int64_t, int64_t)

namespace trireme::cpu::TRIREME_ISA {
namespace {

/// Conversion for stores in `omp simd` loops. Inside the loop, its temporary of class type would keep GCC from vectorising; in this function it does
/// not.
template <class T>
inline T rounded(float value) {
  return static_cast<T>(value);
}

/// out = a + b; out may be a.
template <class A, class B>
inline void add_range(const A* a, const B* b, int64_t count, A* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = rounded<A>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

}  // namespace

template <class T>
void norm_forward(const NormForward<T>& p, int64_t begin, int64_t end);
template <class T>
void norm_backward_input(const NormBackwardInput<T>& p, int64_t begin, int64_t end);
template <class T>
void norm_backward_weight(const NormBackwardWeight<T>& p, int64_t begin, int64_t end);

template <class T>
void swiglu_forward(const GatedForward<T>& p, int64_t begin, int64_t end);
template <class T>
void swiglu_backward(const GatedBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void geglu_forward(const GatedForward<T>& p, int64_t begin, int64_t end);
template <class T>
void geglu_backward(const GatedBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void geglu_erf_forward(const GatedForward<T>& p, int64_t begin, int64_t end);
template <class T>
void geglu_erf_backward(const GatedBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void gelu_forward(const GeluForward<T>& p, int64_t begin, int64_t end);
template <class T>
void gelu_backward(const GeluBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void gelu_erf_forward(const GeluForward<T>& p, int64_t begin, int64_t end);
template <class T>
void gelu_erf_backward(const GeluBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void rope(const Rope<T>& p, int64_t begin, int64_t end);
template <class T>
void attention_decode(const AttentionDecode<T>& p, int64_t begin, int64_t end);
template <class T>
void bias_forward(const BiasForward<T>& p, int64_t begin, int64_t end);
template <class T>
void bias_backward(const BiasBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void embedding_backward(const EmbeddingBackward<T>& p, int64_t begin, int64_t end);
template <class From, class To>
void convert(const Convert<From, To>& p, int64_t begin, int64_t end);
template <class T>
void add(const Add<T>& p, int64_t begin, int64_t end);
template <class T>
void scale(const Scale<T>& p, int64_t begin, int64_t end);
template <class T>
void accumulate(const Accumulate<T>& p, int64_t begin, int64_t end);
template <class T>
void dropout(const Dropout<T>& p, int64_t begin, int64_t end);

template <class T>
void cross_entropy_sums(const CrossEntropySums<T>& p, int64_t begin, int64_t end);
template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& p, int64_t begin, int64_t end);
template <class T>
void sum_of_squares(const SumOfSquares<T>& p, int64_t begin, int64_t end);
void adamw(const AdamWUpdate& p, int64_t begin, int64_t end);
void encode_blocks(const EncodeBlocks& p, int64_t begin, int64_t end);
void decode_blocks(const DecodeBlocks& p, int64_t begin, int64_t end);

}  // namespace trireme::cpu::TRIREME_ISA
