#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // per query: with 16-byte accesses they read 128 bytes of it at a time

/// Computes lse and delta = sum over H of dout * out in the layout that the backward kernels read.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    query_statistics_kernel(const T* __restrict__ dout, const T* __restrict__ out, const float* __restrict__ lse, AttentionLayout layout,
                            int first_head, int heads, float lse_unit, float* __restrict__ lse_of, float* __restrict__ delta_of) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes, stride = statistics_stride(layout.sequence);
  const int head = first_head + static_cast<int>(index / stride), token = static_cast<int>(index % stride);
  const bool there = index < heads * stride, real = there && token < layout.sequence;
  float sum = 0;
  if (real) {
    const int64_t row = layout.output(head) + token * layout.out_columns;
    for (int column = static_cast<int>(threadIdx.x) % kLanes * N; column < layout.head_size; column += kLanes * N) {
      float a[N], b[N];
      load_vector(dout + row + column, a);
      load_vector(out + row + column, b);
#pragma unroll
      for (int i = 0; i < N; ++i) sum = fmaf(a[i], b[i], sum);
    }
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (there && threadIdx.x % kLanes == 0) {
    lse_of[index] = real ? lse[int64_t{head} * layout.sequence + token] * lse_unit : 0;
    delta_of[index] = sum;
  }
}

/// True if the tensor-core kernels support T.
template <class T>
constexpr bool kIs16Bit = sizeof(T) == 2;
template <class T, class... More>
bool uses_flash(const AttentionShape& shape, const T* tensor, const More*... more) {
  return kIs16Bit<T> && flash_supports(shape.head_size) && aligned_16(tensor, more...);
}

void check(const char* operation, const AttentionShape& shape) {
  if (shape.head_size > kPlainHeadSize)
    throw InternalError(concat(operation, ": head size ", shape.head_size, " exceeds the GPU kernels' maximum of ", kPlainHeadSize));
}

template <class T>
void backward(Context& ctx, const T* dout, const T* qkv, const T* out, const float* lse, const AttentionShape& shape, const AttentionLayout& layout,
              T* dqkv, const Tensor& workspace) {
  const bool flash = uses_flash(shape, dout, qkv, dqkv);
  const bool vectors = shape.head_size % kVector<T> == 0 && aligned_16(dout, out);
  const int64_t group = layout.group, stride = statistics_stride(shape.sequence);
  const int64_t at_once = std::min((workspace.bytes() - kTicketBytes) / kv_head_bytes(shape, flash), shape.batch * shape.kv_heads);
  if (at_once <= 0)
    throw InternalError(concat("attention_backward: ", workspace.bytes(), " bytes of workspace are too few for ", group, " query heads of ",
                               shape.sequence, " tokens"));
  const int64_t rows = at_once * group * stride;
  auto* const lse_of = static_cast<float*>(workspace.raw());
  float* const delta_of = lse_of + rows;
  QuerySums sums;
  if (flash) {
    sums.sums = delta_of + rows;
    sums.counters = reinterpret_cast<uint32_t*>(sums.sums + rows * shape.head_size);
    sums.ticket = sums.counters + rows / kCountedQueries;
  }
  for (int64_t pair = 0; pair < shape.batch * shape.kv_heads; pair += at_once) {
    const int64_t pairs = std::min(at_once, shape.batch * shape.kv_heads - pair), items = pairs * group * stride;
    launch(ctx, vectors ? query_statistics_kernel<kVector<T>, T> : query_statistics_kernel<1, T>,
           {dim3(static_cast<unsigned>(ceil_div(items * kLanes, kThreads))), dim3(kThreads)}, dout, out, lse, layout, static_cast<int>(pair * group),
           static_cast<int>(pairs * group), flash ? kLog2E : 1, lse_of, delta_of);
    const AttentionBackward<T> tensors{layout, dout, qkv, lse_of, delta_of, dqkv, pair, pairs, sums};
    if constexpr (kIs16Bit<T>) {
      if (flash) {
        ctx.gpu->fill_bytes(sums.counters, 0, (rows / kCountedQueries + 1) * static_cast<int64_t>(sizeof(uint32_t)));  // and the ticket behind them
        flash_backward(ctx, tensors, shape);
        continue;
      }
    }
    plain_backward(ctx, tensors, shape);
  }
}

}  // namespace

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Documents& documents, const Tensor& out,
                       const Tensor& lse) {
  check("attention_forward", shape);
  if (qkv.numel() == 0) return;
  const AttentionLayout layout(shape, documents);
  dispatch_gpu_float(qkv.dtype(), [&]<class T>(T) {
    if constexpr (kIs16Bit<T>) {
      if (uses_flash(shape, qkv.data<T>(), out.data<T>())) return flash_forward(ctx, qkv.data<T>(), shape, layout, out.data<T>(), lse.data<float>());
    }
    plain_forward(ctx, qkv.data<T>(), shape, layout, out.data<T>(), lse.data<float>());
  });
}

void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Documents& documents, const Tensor& dqkv, const Tensor& workspace) {
  check("attention_backward", shape);
  if (qkv.numel() == 0) return;
  const AttentionLayout layout(shape, documents);
  dispatch_gpu_float(qkv.dtype(), [&]<class T>(T) {
    backward(ctx, dout.data<T>(), qkv.data<T>(), out.data<T>(), lse.data<float>(), shape, layout, dqkv.data<T>(), workspace);
  });
}

}  // namespace trireme::cuda
