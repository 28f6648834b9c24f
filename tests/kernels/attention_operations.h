#pragma once
// Attention operations for the harness, and tolerances relative to fp64.
#include "kernels/cuda/attention.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/documents.h"
#include "tests/kernels/dtypes.h"
#include "tests/kernels/harness.h"
#include "tests/support/gpu.h"

namespace trireme::testing {

// Scores of at most 64 fp32 products of normal numbers over sqrt(64), exponentials of a couple of ulp, sums of at most 130 terms.
constexpr double kTolerance = 4e-6;
// On tensor cores and tiles, probabilities and score gradients are bf16 operands: each has a relative error of at most 2^-8, so a weighted mean of
// values has an error of at most 2^-8 of the largest. Gradients are signed sums of such terms, whose errors grow no faster than the sums: 0.5 * 2^-8
// is measured.
constexpr double kRoundedProbabilities = 0x1p-8;

/// `lengths`: of the documents that fill the sequences; none: a sequence is one document.
inline Operation forward(const AttentionShape& s, const std::vector<int64_t>& lengths = {}) {
  Operation operation{"attention_forward",
                      {input("qkv", {s.batch * s.sequence, s.columns()}), assigned("out", {s.batch * s.sequence, s.heads * s.head_size}),
                       wide(assigned("lse", {s.batch, s.heads, s.sequence}))},
                      [s, packed = !lengths.empty()](Context& ctx, const std::vector<Tensor>& t) {
                        attention_forward(ctx, t[0], s, t[1], t[2], documents_of(t, packed));
                      },
                      false,
                      kRoundedProbabilities};
  if (!lengths.empty())
    for (Operand& bound : bounds_of(lengths, s.sequence)) operation.operands.push_back(std::move(bound));
  return operation;
}
inline Operation backward(const AttentionShape& s, const std::vector<int64_t>& lengths = {}) {
  const int64_t rows = s.batch * s.sequence, columns = s.heads * s.head_size;
  Operand dqkv = assigned("dqkv", {rows, s.columns()});
  dqkv.floor = 1;  // the first row attends only to itself, so its score gradient cancels to zero
  Operation operation{"attention_backward",
                      {input("dout", {rows, columns}), input("qkv", {rows, s.columns()}), input("out", {rows, columns}),
                       wide(input("lse", {s.batch, s.heads, s.sequence})), dqkv},
                      [s, packed = !lengths.empty()](Context& ctx, const std::vector<Tensor>& t) {
                        attention_backward(ctx, t[0], t[1], t[2], t[3], s, t[4], documents_of(t, packed));
                      },
                      false,
                      kRoundedProbabilities};
  if (!lengths.empty())
    for (Operand& bound : bounds_of(lengths, s.sequence)) operation.operands.push_back(std::move(bound));
  return operation;
}

/// Calls body, and once more on a simulated GPU of compute capability 8.0 if one of 9.0 has other kernels for the head size.
inline void on_each_gpu(int64_t head_size, const std::function<void()>& body) {
  body();
#if defined(TRIREME_CUDA) && !defined(TRIREME_REAL_GPU)
  if (!cuda::hopper_supports(head_size)) return;
  const OptionsScope older([](cuda_sim::Options& options) { options.major = 8; });
  body();
#else
  static_cast<void>(head_size);
#endif
}

/// check_engines, and a check of the kernels of a simulated GPU of compute capability 8.0 if one of 9.0 has others for the head size. The others run on
/// tensor cores.
inline void check_on_each_gpu(const Operation& operation, int64_t head_size, const DTypes& dtypes = kAllDTypes) {
  check_engines(operation, kTolerance, dtypes);
#if defined(TRIREME_CUDA) && !defined(TRIREME_REAL_GPU)
  if (!cuda::hopper_supports(head_size)) return;
  const OptionsScope older([](cuda_sim::Options& options) { options.major = 8; });
  check_tensor_core_kernels(operation, kTolerance, dtypes);
#else
  static_cast<void>(head_size);
#endif
}

/// The operation with its inputs rounded to bf16 or fp16.
inline Operation of_narrow(Operation operation, DType dtype) {
  for (Operand& operand : operation.operands) {
    for (double& value : operand.values) {
      if (!operand.wide) value = dtype == DType::kF16 ? static_cast<float>(float16(value)) : static_cast<float>(bfloat16(value));
    }
  }
  return operation;
}

}  // namespace trireme::testing
