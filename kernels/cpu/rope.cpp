#include "kernels/cpu/rope.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {
namespace {

/// Rotates by direction * angle: the backward of a rotation is its inverse.
void rotate(const Context& ctx, const Tensor& table, int64_t heads, float direction, const int32_t* starts, const Tensor& qkv) {
  const int64_t head_size = table.dim(1);
  dispatch_type(qkv.dtype(), [&]<class T>(T) {
    const Rope<T> arguments{.table = table.data<float>(),
                            .positions = table.dim(0),
                            .head_size = head_size,
                            .heads = heads,
                            .columns = qkv.dim(1),
                            .direction = direction,
                            .starts = starts,
                            .qkv = qkv.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).rope, arguments, qkv.dim(0), grain_of(heads * head_size));
  });
}

}  // namespace

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const int32_t* starts, const Tensor& qkv) {
  rotate(ctx, table, heads, 1.0f, starts, qkv);
}

void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const int32_t* starts, const Tensor& dqkv) {
  rotate(ctx, table, heads, -1.0f, starts, dqkv);
}

}  // namespace trireme::cpu
