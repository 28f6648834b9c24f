#pragma once
// Rotary position embedding in the half-split convention of Hugging Face LLaMA: element i of the first R of a head pairs with i + R/2.
// Source: Su et al. 2021, arXiv:2104.09864.
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/ops/documents.h"

namespace trireme {

/// table [T,R]: columns [0,R/2) cosines, [R/2,R) sines of position * frequencies[i]; computed in double on the host, for every device.
void rope_table(Context& ctx, const std::vector<double>& frequencies, const Tensor& table);
/// Rotates the first R elements of the first `heads` heads of each row in place.   qkv [M,C] with C >= heads*H, H = head_size >= R, table [T,R] in the
/// accumulator dtype. The position of row m is m % T, or with documents m % T - starts[m].
void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const Tensor& qkv, const Documents& documents = {});
/// The inverse rotation, applied to gradients in place.
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const Tensor& dqkv, const Documents& documents = {});

}  // namespace trireme
