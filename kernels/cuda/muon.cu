#include "kernels/cuda/muon.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops/optimizer.h"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;

template <int N, class U>
__global__ void __launch_bounds__(kBlock) momentum_kernel(float momentum, const double* scalars, int64_t count, const float* g, float* m, U* u) {
  const auto factor = static_cast<float>(scalars[kGradScale]);
  const bool accepted = scalars[kAccepted] != 0;
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float gradient[N], state[N], update[N];
    load_vector(g + i, count - i, gradient);
    load_vector(m + i, count - i, state);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float own = gradient[k] * factor;
      state[k] = momentum * state[k] + own;
      update[k] = momentum * state[k] + own;
    }
    store_vector(u + i, count - i, update);
    if (accepted) store_vector(m + i, count - i, state);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kBlock) divide_kernel(const double* squares, double epsilon, int64_t count, T* x) {
  const auto divisor = static_cast<float>(sqrt(*squares) + epsilon);
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float values[N];
    load_vector(x + i, count - i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] /= divisor;
    store_vector(x + i, count - i, values);
  }
}

/// `out` may alias x or y.
template <int N, class T>
__global__ void __launch_bounds__(kBlock) weighted_sum_kernel(float a, const T* x, float b, const T* y, int64_t count, T* out) {
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float left[N], right[N];
    load_vector(x + i, count - i, left);
    load_vector(y + i, count - i, right);
#pragma unroll
    for (int k = 0; k < N; ++k) left[k] = a * left[k] + b * right[k];
    store_vector(out + i, count - i, left);
  }
}

/// Calls queue(N) with the number of elements of an access: that of 16 bytes of the widest operand if all addresses allow it, else 1.
template <class Queue, class... Elements>
void by_alignment(const Queue& queue, const Elements*... operands) {
  if (aligned_16(operands...)) return queue(std::integral_constant<int, std::min({kVector<Elements>...})>{});
  queue(std::integral_constant<int, 1>{});
}

template <class U>
void queue_momentum(Context& ctx, double momentum, const Tensor& scalars, const Tensor& g, const Tensor& m, const Tensor& u) {
  const float* const gradient = g.data<float>();
  float* const state = m.data<float>();
  U* const update = u.data<U>();
  by_alignment(
      [&]<int N>(std::integral_constant<int, N>) {
        launch(ctx, momentum_kernel<N, U>, {stride_grid(ctx, ceil_div(g.numel(), N), kBlock), dim3(kBlock)}, static_cast<float>(momentum),
               scalars.data<double>(), g.numel(), gradient, state, update);
      },
      gradient, state, update);
}

}  // namespace

void muon_momentum(Context& ctx, double momentum, const Tensor& scalars, const Tensor& g, const Tensor& m, const Tensor& u) {
  TRIREME_CHECK(m.dtype() == DType::kF32, "the state of optimizers on a GPU is fp32, not ", name_of(m.dtype()));
  if (g.numel() == 0) return;
  u.dtype() == DType::kBF16 ? queue_momentum<bfloat16>(ctx, momentum, scalars, g, m, u) : queue_momentum<float>(ctx, momentum, scalars, g, m, u);
}

void divide_by_norm(Context& ctx, const Tensor& squares, double epsilon, const Tensor& x) {
  if (x.numel() == 0) return;
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    T* const values = x.data<T>();
    by_alignment(
        [&]<int N>(std::integral_constant<int, N>) {
          launch(ctx, divide_kernel<N, T>, {stride_grid(ctx, ceil_div(x.numel(), N), kBlock), dim3(kBlock)}, squares.data<double>(), epsilon,
                 x.numel(), values);
        },
        values);
  });
}

void weighted_sum(Context& ctx, double a, const Tensor& x, double b, const Tensor& y, const Tensor& out) {
  if (out.numel() == 0) return;
  dispatch_gpu_float(out.dtype(), [&]<class T>(T) {
    const T *const left = x.data<T>(), *const right = y.data<T>();
    T* const to = out.data<T>();
    by_alignment(
        [&]<int N>(std::integral_constant<int, N>) {
          launch(ctx, weighted_sum_kernel<N, T>, {stride_grid(ctx, ceil_div(out.numel(), N), kBlock), dim3(kBlock)}, static_cast<float>(a), left,
                 static_cast<float>(b), right, out.numel(), to);
        },
        left, right, to);
  });
}

}  // namespace trireme::cuda
