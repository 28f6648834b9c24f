#pragma once
// Whether two attention kernels computed the same, on the host.
#include <cstdint>

#include "kernels/core/dtype.h"

namespace trireme::cuda {

/// Differences that roundings explain, and that a wrong mask, stride, scale or tile exceeds.
struct AttentionTolerance {
  /// Root mean square of the difference over that of the values. Results and the probabilities and score gradients that are operands of products are
  /// rounded to the dtype. Each kernel is therefore off by 2.6e-3 in bf16 (tests/kernels/attention_test.cpp), and two differ by 3.7e-3: 2^-6 is four
  /// times as much. fp16 rounds to an eighth.   A window that is wrong by one token of W changes values by 1/sqrt(W), which is found up to W = 4096.
  double mean;
  /// Norm of the difference of one head of one token, over its norm plus the root mean square norm: eight times the mean, as few rows attend to few
  /// tokens or cancel. Finds damage that is limited to a few rows.
  double row;
};
constexpr AttentionTolerance attention_tolerance(DType dtype) {
  return dtype == DType::kF16 ? AttentionTolerance{0x1p-9, 0x1p-6} : AttentionTolerance{0x1p-6, 0x1p-3};
}
/// Difference of two log-sum-exp, over max(1, |lse|). Both are fp32: scores below 100 are accurate to 1e-5, and their exponentials are not rounded.
/// A window that is wrong by one token of W changes it by about 1/W.
constexpr double kLseTolerance = 0x1p-12;

/// The larger of mean and row error of two bf16 or fp16 matrices, each as a share of its tolerance: at most 1 if they agree. A head is `head_size`
/// neighbouring columns, of which [first, first + columns) are compared. Rows with NaN or infinities agree if both matrices have them in the same
/// places. Returns infinity otherwise.   a, b [rows, stride]
double rows_difference(const void* a, const void* b, DType dtype, int64_t rows, int64_t stride, int64_t first, int64_t columns, int64_t head_size);
/// Largest difference of log-sum-exp as a share of kLseTolerance; infinity if only one of two values is finite.   a, b [count]
double lse_difference(const float* a, const float* b, int64_t count);

}  // namespace trireme::cuda
