#pragma once
// Sizes of a model that GPUs compute slowly: rates for the forecast, and warnings for the user.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// Rate of a matrix product in bf16 or fp16 relative to one whose rows are all multiples of 16 bytes long. `inputs`, `outputs`: those of the layer, in
/// elements. Each row of the three matrices has one of these lengths, in the forward as well as in the gradients of input and weight.
double alignment_rate(int64_t inputs, int64_t outputs, int64_t element_bytes, bool weight_gradient);

/// Rates of Trireme's attention without tensor cores (kernels/cuda/attention_plain.cu), as shares of the GPU's fp32 peak.
inline constexpr double kPlainAttentionForward = 0.10, kPlainAttentionBackward = 0.081;
/// Does Trireme have kernels for tensor cores for this attention?
bool has_fast_attention(int64_t head_size, int64_t element_bytes);

/// One line for each key of the model that makes its products or its attention slow on GPUs, with the nearest values that do not. `config` is resolved.
/// `own`: attention is computed by Trireme's kernels.
std::vector<std::string> shape_warnings(const Config& config, bool own = true);

}  // namespace trireme
