#pragma once
// Attention by cuDNN in place of the built-in kernels, where GpuOptions::cudnn_attention is set. Supported are bf16 and fp16, head sizes that are
// multiples of 8 up to 128, and 16-byte aligned tensors. The backward is cuDNN's deterministic algorithm.
//
// The library's results are not taken on trust. When a shape is first used in a direction, the built-in kernels compute the same from the run's own
// tensors, and the host compares both (kernels/cuda/attention_comparison.h). From then on cuDNN computes that shape in that direction or never does:
// the built-in kernels do if cuDNN has no engine for it, needs more memory than was forecast, or gave another result.
//
// Each rank decides for itself. Ranks that hold copies of the same state receive it from collectives (sums of gradients, gathered parameters), so
// that their copies stay equal whichever kernels each of them uses; no two ranks compute attention of the same heads and tokens.
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

constexpr int64_t kCudnnWorkspaceSlack = 4096;  ///< beyond the tensors below: cuDNN aligns them (at most 256 bytes in 9.19)

constexpr bool cudnn_supports(const AttentionShape& shape, DType dtype) {
  return size_of(dtype) == 2 && shape.head_size % 8 == 0 && shape.head_size <= 128;
}
/// Upper bound of what the backward needs for each kv head that it processes at a time: the score gradients of its query heads in 16 bits, whose
/// rows and columns cuDNN rounds up to tiles of at most 128, a row sum in fp32 per query, and with shared kv heads dk and dv of each query head.
/// Ordered sums of dq over key blocks are what makes the algorithm deterministic, and they are the product of these score gradients with the keys.
/// Measured with cuDNN 9.19: exact on compute capability 8.0, 8.9, 9.0 and 12.0; 10.0 needs no score gradients.
constexpr int64_t cudnn_kv_head_bytes(const AttentionShape& shape) {
  const int64_t group = shape.heads / shape.kv_heads, rounded = (shape.sequence + 127) / 128 * 128;
  const int64_t full_heads = group > 1 ? shape.sequence * shape.head_size * 4 : 0;
  return group * (rounded * rounded * 2 + shape.sequence * 4 + full_heads);
}
/// The backward runs over equal slices: the largest number of whole sequences or, if not even one fits `limit`, of kv heads of a sequence.
struct CudnnSlice {
  int64_t sequences = 0;  ///< 0: not one kv head fits
  int64_t kv_heads = 0;
};
constexpr CudnnSlice cudnn_slice(const AttentionShape& shape, int64_t limit) {
  const int64_t fitting = (limit - kCudnnWorkspaceSlack) / cudnn_kv_head_bytes(shape);
  const auto largest_divisor = [](int64_t number, int64_t most) {
    int64_t divisor = most < number ? most : number;
    while (divisor > 0 && number % divisor != 0) --divisor;
    return divisor;
  };
  if (fitting >= shape.kv_heads) return {largest_divisor(shape.batch, fitting / shape.kv_heads), shape.kv_heads};
  const int64_t heads = largest_divisor(shape.kv_heads, fitting);
  return {heads > 0 ? 1 : 0, heads};
}
/// Workspace of the backward in bytes; 0 if cuDNN does not compute the shape.
constexpr int64_t cudnn_workspace_bytes(const AttentionShape& shape, DType dtype, int64_t limit = GpuOptions{}.cudnn_workspace) {
  if (!cudnn_supports(shape, dtype) || shape.batch * shape.sequence == 0) return 0;
  const CudnnSlice slice = cudnn_slice(shape, limit);
  return slice.sequences == 0 ? 0 : slice.sequences * slice.kv_heads * cudnn_kv_head_bytes(shape) + kCudnnWorkspaceSlack;
}

/// Loads cuDNN, so that a missing library fails at the start of a run. Returns its version, "cuDNN 9.19.0", for the log.
/// Errors: ConfigError that lists what was tried, or that this build has no cuDNN attention.
std::string attention_library();

/// Returns false if the built-in kernels of kernels/cuda/attention.h have to compute it; always without GpuOptions::cudnn_attention. Waits for the GPU
/// at the first use of a shape, which must be outside of a capture.   Operands as there.   Errors: InternalError if cuDNN fails after it has been
/// compared.
bool cudnn_attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
/// `workspace` has at least cudnn_workspace_bytes.
bool cudnn_attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                              const Tensor& dqkv, const Tensor& workspace);

/// Which kernels compute one shape in one direction on this GPU.
struct AttentionChoice {
  std::string shape;      ///< "backward, 4 x 2048 tokens, 16 heads, 4 kv heads of size 128, window 512, BF16"
  std::string reason;     ///< why the built-in kernels compute it; empty: cuDNN does
  bool mismatch = false;  ///< cuDNN's result was another one
  double difference = 0;  ///< largest of the comparison as a share of what is allowed; 0: not compared
};
/// In the order of first use; empty without GpuOptions::cudnn_attention.
std::vector<AttentionChoice> attention_choices(Gpu& gpu);

}  // namespace trireme::cuda
