#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

#define TRIREME_LEVEL(isa)                  \
  namespace isa {                           \
  extern const AttentionKernels kAttention; \
  }
TRIREME_LEVEL(portable)
#ifdef __x86_64__
TRIREME_LEVEL(avx2)
TRIREME_LEVEL(avx512)
TRIREME_LEVEL(avx512_bf16)
TRIREME_LEVEL(amx)
#endif
#undef TRIREME_LEVEL

namespace {

#ifdef __x86_64__
constexpr const AttentionKernels* kLevels[kIsas] = {&portable::kAttention, &avx2::kAttention, &avx512::kAttention, &avx512_bf16::kAttention,
                                                    &amx::kAttention};
#else
constexpr const AttentionKernels* kLevels[] = {&portable::kAttention};
#endif

const TypedAttention<float>& of_type(const AttentionKernels& kernels, float) { return kernels.f32; }
const TypedAttention<bfloat16>& of_type(const AttentionKernels& kernels, bfloat16) { return kernels.bf16; }
const TypedAttention<float16>& of_type(const AttentionKernels& kernels, float16) { return kernels.f16; }

int64_t blocks_of(int64_t length) { return (length + kAttentionBlock - 1) / kAttentionBlock; }

/// Calls body(sizes, count) for each run of `count` consecutive documents of equal length, which the kernels process like a batch of sequences.
template <class Body>
void for_each_run(const AttentionShape& shape, const Documents& documents, Body&& body) {
  const float scale = shape.score_scale == 0 ? 1.0F / std::sqrt(static_cast<float>(shape.head_size)) : static_cast<float>(shape.score_scale);
  const auto run = [&](int64_t first_row, int64_t length, int64_t count) {
    body(AttentionSizes{length, shape.heads, shape.kv_heads, shape.head_size, scale, shape.band().within(length), first_row, shape.sequence}, count);
  };
  if (!documents.defined()) return run(0, shape.sequence, shape.batch);
  const auto length_at = [&](int64_t row) { return documents.ends.data<int32_t>()[row] - documents.starts.data<int32_t>()[row]; };
  for (int64_t row = 0, rows = shape.batch * shape.sequence; row < rows;) {
    const int64_t first_row = row, length = length_at(row);
    while (row < rows && length_at(row) == length) row += length;
    run(first_row, length, (row - first_row) / length);
  }
}

/// Runs `kernel` on items [0, count), which have about equal cost, with one contiguous range per thread.
template <class Arguments>
void run_items(Context& ctx, AttentionKernel<Arguments> kernel, AttentionWorkspace workspace_bytes, const Arguments& arguments, int64_t count) {
  const int64_t workers = std::min<int64_t>(ctx.threads, count);
  if (workers == 0) return;
  const int64_t floats = workspace_bytes(arguments.sizes) / static_cast<int64_t>(sizeof(float));
  const Tensor workspace = Tensor::empty(ctx, {workers, floats}, DType::kF32, MemoryCategory::kWorkspace);
  float* const memory = workspace.data<float>();
  parallel_for(ctx, workers, 1, [&, kernel](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker)
      kernel(arguments, count * worker / workers, count * (worker + 1) / workers, memory + worker * floats);
  });
}

}  // namespace

template <class T>
const TypedAttention<T>& attention_kernels(Isa isa) {
  size_t level = std::min(static_cast<size_t>(isa), std::size(kLevels) - 1);
  while (of_type(*kLevels[level], T{}).forward == nullptr) --level;  // the portable level has every type
  return of_type(*kLevels[level], T{});
}

template <class T>
void attention_forward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& qkv, const AttentionShape& shape, const Documents& documents,
                       const Tensor& out, const Tensor& lse) {
  for_each_run(shape, documents, [&](const AttentionSizes& sizes, int64_t count) {
    const AttentionForward<T> arguments{.qkv = qkv.data<T>(), .sizes = sizes, .out = out.data<T>(), .lse = lse.data<float>()};
    run_items(ctx, kernels.forward, kernels.forward_workspace, arguments, count * shape.kv_heads * ((blocks_of(sizes.sequence) + 1) / 2));
  });
}

template <class T>
void attention_backward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                        const AttentionShape& shape, const Documents& documents, const Tensor& dqkv) {
  for_each_run(shape, documents, [&](const AttentionSizes& sizes, int64_t count) {
    const int64_t tasks = count * shape.kv_heads, blocks = blocks_of(sizes.sequence);
    // A pair of blocks takes five matrix products, or seven with `split`. Splitting is faster if threads would otherwise be idle for whole tasks.
    const int64_t rounds = (tasks + ctx.threads - 1) / ctx.threads;
    const bool split = blocks > 1 && 5 * rounds * ctx.threads > 7 * tasks;
    const AttentionBackward<T> arguments{.dout = dout.data<T>(),
                                         .qkv = qkv.data<T>(),
                                         .out = out.data<T>(),
                                         .lse = lse.data<float>(),
                                         .sizes = sizes,
                                         .split = split,
                                         .dqkv = dqkv.data<T>()};
    run_items(ctx, kernels.backward, kernels.backward_workspace, arguments, blocks == 0 ? 0 : tasks * (split ? blocks : 1));
  });
}

#define TRIREME_INSTANCE(T)                                                                                                                     \
  template const TypedAttention<T>& attention_kernels<T>(Isa);                                                                                  \
  template void attention_forward<T>(Context&, const TypedAttention<T>&, const Tensor&, const AttentionShape&, const Documents&, const Tensor&, \
                                     const Tensor&);                                                                                            \
  template void attention_backward<T>(Context&, const TypedAttention<T>&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,           \
                                      const AttentionShape&, const Documents&, const Tensor&)
TRIREME_INSTANCE(float);
TRIREME_INSTANCE(bfloat16);
TRIREME_INSTANCE(float16);
#undef TRIREME_INSTANCE

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Documents& documents, const Tensor& out,
                       const Tensor& lse) {
  dispatch_type(qkv.dtype(), [&]<class T>(T) { attention_forward(ctx, attention_kernels<T>(ctx.isa), qkv, shape, documents, out, lse); });
}

void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Documents& documents, const Tensor& dqkv) {
  dispatch_type(qkv.dtype(),
                [&]<class T>(T) { attention_backward(ctx, attention_kernels<T>(ctx.isa), dout, qkv, out, lse, shape, documents, dqkv); });
}

void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out) {
  const int64_t items = shape.sequence * shape.heads, size = shape.head_size;
  const Tensor sums = Tensor::empty(ctx, {items, size}, DType::kF32, MemoryCategory::kWorkspace);
  dispatch_type(qkv.dtype(), [&]<class T>(T) {
    const AttentionDecode<T> arguments{.qkv = qkv.data<T>(),
                                       .keys = keys.data<T>(),
                                       .values = values.data<T>(),
                                       .room = keys.dim(0),
                                       .position = position,
                                       .band = shape.band(),
                                       .heads = shape.heads,
                                       .kv_heads = shape.kv_heads,
                                       .head_size = size,
                                       .scale = static_cast<float>(shape.scale()),
                                       .sums = sums.data<float>(),
                                       .out = out.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).attention_decode, arguments, items, grain_of(2 * (position + shape.sequence) * size));
  });
}

}  // namespace trireme::cpu
