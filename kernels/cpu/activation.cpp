#include "kernels/cpu/activation.h"

#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"

namespace trireme::cpu {
namespace {

// GELU(x) = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh(u)) / 2 = sigmoid(2u), no tanh is needed and nothing cancels
// for negative x.
constexpr float kCubic = 0.044715f;
constexpr float kTwoRootTwoOverPi = 1.59576912160573071f;  // 2 sqrt(2/pi)

}  // namespace

void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y) {
  const int64_t columns = y.dim(1);
  const float* const in = gate_up.data<float>();
  float* const out = y.data<float>();
  parallel_for(ctx, y.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* const gate = in + 2 * m * columns;
      const float* const up = gate + columns;
      float* const row = out + m * columns;
#pragma omp simd
      for (int64_t f = 0; f < columns; ++f) row[f] = gate[f] * sigmoid(gate[f]) * up[f];
    }
  });
}

void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  const int64_t columns = dy.dim(1);
  const float* const gradient = dy.data<float>();
  const float* const in = gate_up.data<float>();
  float* const out = dgate_up.data<float>();
  parallel_for(ctx, dy.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* const dy_row = gradient + m * columns;
      const float* const gate = in + 2 * m * columns;
      const float* const up = gate + columns;
      float* const dgate = out + 2 * m * columns;
      float* const dup = dgate + columns;
#pragma omp simd
      for (int64_t f = 0; f < columns; ++f) {
        const float g = gate[f];
        const float u = up[f];
        const float d = dy_row[f];
        const float s = sigmoid(g);
        dgate[f] = d * u * s * (1.0f + g * (1.0f - s));
        dup[f] = d * g * s;
      }
    }
  });
}

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y) {
  const float* const in = x.data<float>();
  float* const out = y.data<float>();
  parallel_for(ctx, x.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float v = in[i];
      out[i] = v * sigmoid(kTwoRootTwoOverPi * (v + kCubic * v * v * v));
    }
  });
}

void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  const float* const gradient = dy.data<float>();
  const float* const in = x.data<float>();
  float* const out = dx.data<float>();
  parallel_for(ctx, x.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float v = in[i];
      const float s = sigmoid(kTwoRootTwoOverPi * (v + kCubic * v * v * v));
      const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
      out[i] = gradient[i] * (s + v * s * (1.0f - s) * slope);
    }
  });
}

}  // namespace trireme::cpu
