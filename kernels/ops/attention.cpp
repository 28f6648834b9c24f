#include "kernels/ops/attention.h"

#include <algorithm>

#include "kernels/core/gpu.h"
#include "kernels/cpu/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/attention.h"

namespace trireme {
namespace {

void check(const char* operation, const AttentionShape& shape) {
  TRIREME_CHECK(shape.heads > 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_size > 0, operation,
                ": invalid shape: ", shape.heads, " heads, ", shape.kv_heads, " kv heads of size ", shape.head_size);
  TRIREME_CHECK(shape.window >= 0, operation, ": invalid window of ", shape.window, " tokens");
}

AttentionWork work_of(const AttentionShape& shape, bool backward) {
  return {.sequences = shape.batch,
          .length = shape.sequence,
          .heads = shape.heads,
          .head_size = shape.head_size,
          .window = shape.window,
          .backward = backward};
}

/// Memory in which a GPU works during attention_backward; undefined for other devices. On kMeta it is counted if Context::for_gpu, with that of cuDNN if
/// Context::cudnn_attention.
Tensor workspace_of(Context& ctx, const AttentionShape& shape, DType dtype) {
  if (ctx.device != Device::kCuda && !(ctx.device == Device::kMeta && ctx.for_gpu)) return {};
  const cuda::GpuOptions options = ctx.device == Device::kCuda ? ctx.gpu->options() : cuda::GpuOptions{.cudnn_attention = ctx.cudnn_attention};
  const int64_t of_cudnn = options.cudnn_attention ? cuda::cudnn_workspace_bytes(shape, dtype, options.cudnn_workspace) : 0;
  const int64_t bytes = std::max(cuda::attention_workspace_bytes(shape, dtype), of_cudnn);
  const int64_t words = (bytes + 3) / static_cast<int64_t>(sizeof(float));
  return Tensor::empty(ctx, {words}, DType::kF32, MemoryCategory::kWorkspace);
}

}  // namespace

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                       const Documents& documents) {
  const int64_t rows = shape.batch * shape.sequence;
  const DType dtype = qkv.dtype();
  check("attention_forward", shape);
  Operation operation(ctx, "attention_forward",
                      {{"qkv", qkv, {rows, shape.columns()}, dtype},
                       {"out", out, {rows, shape.heads * shape.head_size}, dtype},
                       {"lse", lse, {shape.batch, shape.heads, shape.sequence}, accumulator_of(dtype)}});
  operation.optional({"starts", documents.starts, {rows}, DType::kI32});
  operation.optional({"ends", documents.ends, {rows}, DType::kI32, Passes::kNotCounted});
  operation.attention(work_of(shape, false));
  operation.run(
      dtype,
      [&] {
        if (documents.starts.defined() || !cuda::cudnn_attention_forward(ctx, qkv, shape, out, lse))
          cuda::attention_forward(ctx, qkv, shape, documents, out, lse);
      },
      FastCpu{[&] { cpu::attention_forward(ctx, qkv, shape, documents, out, lse); }, true},
      [&]<class T>(T) { reference::attention_forward(qkv.data<T>(), shape, documents.starts_or_null(), out.data<T>(), lse.data<Accumulator<T>>()); });
}

void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv, const Documents& documents) {
  const int64_t rows = shape.batch * shape.sequence;
  const DType dtype = qkv.dtype();
  check("attention_backward", shape);
  Operation operation(ctx, "attention_backward",
                      {{"dout", dout, {rows, shape.heads * shape.head_size}, dtype},
                       {"qkv", qkv, {rows, shape.columns()}, dtype},
                       {"out", out, {rows, shape.heads * shape.head_size}, dtype},
                       {"lse", lse, {shape.batch, shape.heads, shape.sequence}, accumulator_of(dtype)},
                       {"dqkv", dqkv, {rows, shape.columns()}, dtype}});
  operation.optional({"starts", documents.starts, {rows}, DType::kI32, Passes::kNotCounted});
  operation.optional({"ends", documents.ends, {rows}, DType::kI32});
  operation.attention(work_of(shape, true));
  const Tensor workspace = workspace_of(ctx, shape, dtype);
  operation.run(
      dtype,
      [&] {
        if (documents.starts.defined() || !cuda::cudnn_attention_backward(ctx, dout, qkv, out, lse, shape, dqkv, workspace))
          cuda::attention_backward(ctx, dout, qkv, out, lse, shape, documents, dqkv, workspace);
      },
      FastCpu{[&] { cpu::attention_backward(ctx, dout, qkv, out, lse, shape, documents, dqkv); }, true},
      [&]<class T>(T) {
        reference::attention_backward(dout.data<T>(), qkv.data<T>(), out.data<T>(), lse.data<Accumulator<T>>(), shape, documents.starts_or_null(),
                                      dqkv.data<T>());
      });
}

void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out) {
  const DType dtype = qkv.dtype();
  check("attention_decode", shape);
  const int64_t room = keys.dim(0), columns = shape.kv_heads * shape.head_size;
  Operation operation(ctx, "attention_decode",
                      {{"qkv", qkv, {shape.sequence, shape.columns()}, dtype},
                       {"keys", keys, {room, columns}, dtype},
                       {"values", values, {room, columns}, dtype},
                       {"out", out, {shape.sequence, shape.heads * shape.head_size}, dtype}});
  const bool all_fit = position + shape.sequence <= room, window_fits = shape.window > 0 && shape.window - 1 <= room - shape.sequence;
  TRIREME_CHECK(shape.batch == 1 && position >= 0 && (all_fit || window_fits), "attention_decode: ", shape.batch, " sequences of ", shape.sequence,
                " rows at position ", position, " exceed a cache of ", room, shape.window == 0 ? "" : concat(", with a window of ", shape.window));
  operation.run(
      dtype, [&] { cuda::attention_decode(ctx, qkv, keys, values, position, shape, out); },
      FastCpu{[&] { cpu::attention_decode(ctx, qkv, keys, values, position, shape, out); }, true},
      [&]<class T>(T) { reference::attention_decode(qkv.data<T>(), keys.data<T>(), values.data<T>(), room, position, shape, out.data<T>()); });
}

}  // namespace trireme
