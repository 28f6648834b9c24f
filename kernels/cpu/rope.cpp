#include "kernels/cpu/rope.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {
namespace {

/// Rotates by direction * angle: the backward of a rotation is its inverse.
void rotate(const Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, float direction, const int32_t* starts, const Tensor& qkv) {
  dispatch_type(qkv.dtype(), [&]<class T>(T) {
    const Rope<T> arguments{.table = table.data<float>(),
                            .positions = table.dim(0),
                            .rotated = table.dim(1),
                            .head_size = head_size,
                            .heads = heads,
                            .columns = qkv.dim(1),
                            .direction = direction,
                            .starts = starts,
                            .qkv = qkv.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).rope, arguments, qkv.dim(0), grain_of(heads * table.dim(1)));
  });
}

}  // namespace

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& qkv) {
  rotate(ctx, table, heads, head_size, 1.0f, starts, qkv);
}

void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& dqkv) {
  rotate(ctx, table, heads, head_size, -1.0f, starts, dqkv);
}

}  // namespace trireme::cpu
