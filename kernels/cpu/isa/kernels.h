#pragma once
// The loops of kernels/cpu, which are compiled once for every level of instructions (kernels/core/isa.h) and chosen by Context::isa when they are called. Each
// is a range kernel: it works on items [begin, end) of what its arguments describe, alone, so that threads can share the items, and what it writes for an item
// does not depend on the range.
//
// Files in this folder define nothing that the linker could take for the same thing of another level: no standard library, everything in
// trireme::cpu::TRIREME_ISA (a test reads their symbols). T is float, bfloat16 or float16; arithmetic and everything declared float here is fp32.
#include <cstdint>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "kernels/core/isa.h"

namespace trireme::cpu {

template <class Arguments>
using RangeKernel = void (*)(const Arguments&, int64_t begin, int64_t end);

/// Rows: y = norm(x) or, with `addend`, sum = x + addend and y = norm(sum).   b null: RMSNorm, without a mean.
template <class T>
struct NormForward {
  const T* x;
  const T* addend;  ///< null: none
  const T* w;
  const T* b;
  float epsilon;
  int64_t columns;
  T* sum;       ///< with an addend
  T* y;
  float* mean;  ///< with b
  float* rstd;
};

/// Rows.   mean null: RMSNorm; residual null: none.
template <class T>
struct NormBackwardInput {
  const T *dy, *x, *w;
  const float *mean, *rstd;
  const T* residual;
  int64_t columns;
  T* dx;
};

/// Columns: dw += sum over rows of dy * x_hat, db += sum of dy.   mean and db null: RMSNorm.
template <class T>
struct NormBackwardWeight {
  const T *dy, *x;
  const float *mean, *rstd;
  int64_t rows, columns;
  float *dw, *db;
};

/// What a level has for a type.
template <class T>
struct TypedKernels {
  RangeKernel<NormForward<T>> norm_forward;
  RangeKernel<NormBackwardInput<T>> norm_backward_input;
  RangeKernel<NormBackwardWeight<T>> norm_backward_weight;
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<bfloat16> bf16;
  TypedKernels<float16> f16;

  template <class T>
  const TypedKernels<T>& of() const;
};
template <>
inline const TypedKernels<float>& Kernels::of() const {
  return f32;
}
template <>
inline const TypedKernels<bfloat16>& Kernels::of() const {
  return bf16;
}
template <>
inline const TypedKernels<float16>& Kernels::of() const {
  return f16;
}

/// The kernels of a level; those of the highest below it where the build has not this one.
const Kernels& kernels_of(Isa isa);

}  // namespace trireme::cpu
