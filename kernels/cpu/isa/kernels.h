#pragma once
// The loops of kernels/cpu, compiled once for each instruction-set level (kernels/core/isa.h) and selected at run time by Context::isa. Each is a
// range kernel: it computes items [begin, end) of its arguments independently, so that threads can share the items, and the result of an item does
// not depend on the range. The comment of an argument struct begins with its items.
//
// Files in this folder define no symbol that the linker could merge with one of another level: they use no standard library, and everything is in
// trireme::cpu::TRIREME_ISA (a test reads their symbols). T is float, bfloat16 or float16; arithmetic and everything declared float here is fp32.
#include <cstdint>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "kernels/core/isa.h"
#include "kernels/ops/attention_band.h"

namespace trireme::cpu {

template <class Arguments>
using RangeKernel = void (*)(const Arguments&, int64_t begin, int64_t end);

/// Items: rows. y = norm(x) or, with `addend`, sum = x + addend and y = norm(sum).   b null: RMSNorm, without a mean.
template <class T>
struct NormForward {
  const T* x;
  const T* addend;  ///< null: none
  const T* w;
  const T* b;
  float epsilon, offset;  ///< of w, with RMSNorm
  int64_t columns;
  T* sum;  ///< only with an addend
  T* y;
  float* mean;  ///< only with b
  float* rstd;
};

/// Items: rows.   mean null: RMSNorm; residual null: none.
template <class T>
struct NormBackwardInput {
  const T *dy, *x, *w;
  const float *mean, *rstd;
  const T* residual;
  float offset;  ///< as in NormForward
  int64_t columns;
  T* dx;
};

/// Items: columns. dw += sum over rows of dy * x_hat, db += sum of dy.   mean and db null: RMSNorm.
template <class T>
struct NormBackwardWeight {
  const T *dy, *x;
  const float *mean, *rstd;
  int64_t rows, columns;
  float *dw, *db;
};

/// Items: rows. Maximum and sum of exponentials of the first `valid` columns.   row_max [rows], sums [2,rows] as in kernels/ops/cross_entropy.h.
template <class T>
struct CrossEntropySums {
  const T* logits;
  int64_t rows, columns, valid;
  float *row_max, *sums;
};

/// Items: rows. logits := (softmax - one_hot(target)) * scale; this rank has tokens [first, first + valid).
template <class T>
struct CrossEntropyBackward {
  const int32_t* targets;
  const float *row_max, *sums;
  double scale;
  int64_t columns, first, valid;
  T* logits;
};

constexpr int64_t kSquaresBlock = 4096;
/// Items: blocks of kSquaresBlock elements. partial[b] = sum of the squares of block b.
template <class T>
struct SumOfSquares {
  const T* x;
  int64_t count;
  double* partial;
};

/// Items: the elements of all slices, concatenated.
struct AdamWUpdate {
  struct Slice {
    int64_t begin, end;  ///< its range of items
    float* w;
    const float* g;
    float *m, *v;
    float decay;  ///< 1 - lr * weight_decay
  };
  const Slice* slices;
  int64_t count;  ///< number of slices
  float grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;        ///< lr / c1
  float root_correction;  ///< 1 / sqrt(c2)
  float epsilon;
};

/// Items: rows. y = activation(gate) * up, where a row of gate_up is [gate | up] of `columns` elements each.
template <class T>
struct GatedForward {
  const T* gate_up;
  int64_t columns;
  T* y;
};

/// Items: rows.
template <class T>
struct GatedBackward {
  const T *dy, *gate_up;
  int64_t columns;
  T* dgate_up;
};

/// Items: elements.
template <class T>
struct GeluForward {
  const T* x;
  T* y;
};

/// Items: elements.
template <class T>
struct GeluBackward {
  const T *dy, *x;
  T* dx;
};

/// Items: rows. Rotates the first `rotated` elements of the first `heads` heads by direction * angle of the position, which is row % positions, less
/// starts[row] unless that is null.
template <class T>
struct Rope {
  const float* table;
  int64_t positions, rotated, head_size, heads, columns;
  float direction;
  const int32_t* starts;
  T* qkv;
};

/// Items: (row, query head), in this order. Row r is token position + r and attends to the keys of its band. Keys and values have kv_heads *
/// head_size columns, and those of token p are in row p % room.
template <class T>
struct AttentionDecode {
  const T *qkv, *keys, *values;
  int64_t room, position;
  AttentionBand<int64_t> band;
  int64_t heads, kv_heads, head_size;
  float scale;
  float* sums;  ///< scratch: head_size floats per item
  T* out;
};

/// Items: rows.
template <class T>
struct BiasForward {
  const T* bias;
  int64_t columns;
  T* y;
};

/// Items: columns.
template <class T>
struct BiasBackward {
  const T* dy;
  int64_t rows, columns;
  float* dbias;
};

/// Items: columns. dw[tokens[m] - vocab_begin] += dy[m] for m = 0, 1, ... if that row is in [0, vocab_rows).
template <class T>
struct EmbeddingBackward {
  const int32_t* tokens;
  const T* dy;
  int64_t rows, columns, vocab_begin, vocab_rows;
  float* dw;
};

/// Items: elements.
template <class From, class To>
struct Convert {
  const From* from;
  To* to;
};

/// Items: elements. out = a + b; out may be a or b.
template <class T>
struct Add {
  const T *a, *b;
  T* out;
};

/// Items: elements. y = factor * x; y may be x.
template <class T>
struct Scale {
  const T* x;
  float factor;
  T* y;
};

/// Items: elements. out += x.
template <class T>
struct Accumulate {
  const T* x;
  float* out;
};

/// Items: elements. y = x * scale if the draw of 53 bits is at least `threshold`, else 0.
template <class T>
struct Dropout {
  const T* x;
  uint64_t key, first_index, step, threshold;
  float scale;
  T* y;
};

/// Items: blocks of `block` elements, a multiple of 8, the last one perhaps shorter. A scale each, and codes of 8, 4 or 1 `bits` (kernels/ops/compress.h).
struct EncodeBlocks {
  const float *gradient, *error;  ///< error null: none
  int64_t count, block;
  int bits;
  float* scales;
  uint8_t* codes;
  float* next_error;  ///< may be gradient or error; null: not wanted, and error is null
};

/// Items: blocks. out += scale * code.
struct DecodeBlocks {
  const float* scales;
  const uint8_t* codes;
  int64_t count, block;
  int bits;
  float* out;
};

/// The kernels of a level for one type.
template <class T>
struct TypedKernels {
  RangeKernel<NormForward<T>> norm_forward;
  RangeKernel<NormBackwardInput<T>> norm_backward_input;
  RangeKernel<NormBackwardWeight<T>> norm_backward_weight;
  RangeKernel<GatedForward<T>> swiglu_forward, geglu_forward, geglu_erf_forward;
  RangeKernel<GatedBackward<T>> swiglu_backward, geglu_backward, geglu_erf_backward;
  RangeKernel<GeluForward<T>> gelu_forward, gelu_erf_forward;
  RangeKernel<GeluBackward<T>> gelu_backward, gelu_erf_backward;
  RangeKernel<Rope<T>> rope;
  RangeKernel<AttentionDecode<T>> attention_decode;
  RangeKernel<BiasForward<T>> bias_forward;
  RangeKernel<BiasBackward<T>> bias_backward;
  RangeKernel<EmbeddingBackward<T>> embedding_backward;
  RangeKernel<Convert<T, float>> to_f32;  ///< this and the next two: null for T to T
  RangeKernel<Convert<T, bfloat16>> to_bf16;
  RangeKernel<Convert<T, float16>> to_f16;
  template <class To>
  RangeKernel<Convert<T, To>> to() const {
    if constexpr (std::is_same_v<To, float>)
      return to_f32;
    else if constexpr (std::is_same_v<To, bfloat16>)
      return to_bf16;
    else
      return to_f16;
  }
  RangeKernel<Add<T>> add;
  RangeKernel<Scale<T>> scale;
  RangeKernel<Accumulate<T>> accumulate;
  RangeKernel<Dropout<T>> dropout;
  RangeKernel<CrossEntropySums<T>> cross_entropy_sums;
  RangeKernel<CrossEntropyBackward<T>> cross_entropy_backward;
  RangeKernel<SumOfSquares<T>> sum_of_squares;
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<bfloat16> bf16;
  TypedKernels<float16> f16;
  RangeKernel<AdamWUpdate> adamw;
  RangeKernel<EncodeBlocks> encode_blocks;
  RangeKernel<DecodeBlocks> decode_blocks;

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

/// The kernels of a level, or of the highest level below it that this build has.
const Kernels& kernels_of(Isa isa);

}  // namespace trireme::cpu
