#include "kernels/cpu/rope.h"

#include "kernels/cpu/parallel.h"

namespace trireme::cpu {
namespace {

/// Rotates by direction * angle: the backward of a rotation is its inverse.
void rotate(const Context& ctx, const Tensor& table, int64_t heads, float direction, const Tensor& qkv) {
  const int64_t positions = table.dim(0);
  const int64_t head_size = table.dim(1);
  const int64_t half = head_size / 2;
  const int64_t columns = qkv.dim(1);
  const float* const angles = table.data<float>();
  float* const rows = qkv.data<float>();
  parallel_for(ctx, qkv.dim(0), grain_of(heads * head_size), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* const cosine = angles + m % positions * head_size;
      const float* const sine = cosine + half;
      for (int64_t head = 0; head < heads; ++head) {
        float* const low = rows + m * columns + head * head_size;
        float* const high = low + half;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const float a = low[i];
          const float b = high[i];
          const float s = direction * sine[i];
          low[i] = a * cosine[i] - b * s;
          high[i] = b * cosine[i] + a * s;
        }
      }
    }
  });
}

}  // namespace

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& qkv) { rotate(ctx, table, heads, 1.0f, qkv); }

void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& dqkv) { rotate(ctx, table, heads, -1.0f, dqkv); }

}  // namespace trireme::cpu
