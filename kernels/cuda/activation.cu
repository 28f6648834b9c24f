#include "kernels/cuda/activation.h"

#include <numbers>

#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kAccesses = 2;  // in flight per thread and operand, for flat operands

/// 1 / (1 + exp(-x)). 16-bit types use the GPU's approximate exponential and reciprocal: rounding hides their error of at most 2^-20, and the exact
/// functions would take longer than the memory accesses.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == sizeof(float)) return 1 / (1 + expf(-x));
  return __fdividef(1.0F, 1 + __expf(-x));
}

/// silu(gate) and its derivative.
template <class T>
struct Silu {
  float value, slope;
  __device__ __forceinline__ explicit Silu(float gate) {
    const float s = sigmoid<T>(gate);
    value = gate * s;
    slope = s * (1 + gate * (1 - s));
  }
};

/// y = activation(gate) * up. `Activation<T>` has the value of a gate and its slope. One thread per N elements of y, `row_accesses` threads per row.
template <class T, int N, class Activation>
__global__ void __launch_bounds__(kBlock)
    gated_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y, uint32_t accesses, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const int64_t row = access / row_accesses, column = int64_t{access % row_accesses} * N;
  const T* const pair = gate_up + row * 2 * columns + column;
  float gate[N], up[N];
  load_vector(pair, gate);
  load_vector(pair + columns, up);
#pragma unroll
  for (int i = 0; i < N; ++i) up[i] *= Activation(gate[i]).value;
  store_vector(y + row * columns + column, up);
}

/// dgate_up may alias gate_up.
template <class T, int N, class Activation>
__global__ void __launch_bounds__(kBlock)
    gated_backward_kernel(const T* __restrict__ dy, const T* gate_up, T* dgate_up, uint32_t accesses, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const int64_t row = access / row_accesses, column = int64_t{access % row_accesses} * N;
  const int64_t pair = row * 2 * columns + column;
  float gradient[N], gate[N], up[N];
  load_vector(dy + row * columns + column, gradient);
  load_vector(gate_up + pair, gate);
  load_vector(gate_up + pair + columns, up);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Activation activation(gate[i]);
    gate[i] = gradient[i] * up[i] * activation.slope;
    up[i] = gradient[i] * activation.value;
  }
  store_vector(dgate_up + pair, gate);
  store_vector(dgate_up + pair + columns, up);
}

// x/2 (1 + tanh u) = x sigmoid(2u), u = scale (x + cubic x^3)
constexpr float kScale = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
constexpr float kCubic = 0.044715F;

template <class T>
__device__ __forceinline__ float gelu_gate(float x) {
  return sigmoid<T>(2 * kScale * fmaf(kCubic * x * x, x, x));
}

/// e^(-x^2/2), and Phi(x), the share of the normal distribution below x. fp32 takes erfc of the library; for 16-bit types see sigmoid().
template <class T>
struct Normal {
  float gauss, below;
  __device__ __forceinline__ explicit Normal(float x) {
    if constexpr (sizeof(T) == sizeof(float)) {
      gauss = expf(-0.5F * x * x);
      below = 0.5F * erfcf(-kRootHalf * x);
    } else {
      gauss = __expf(-0.5F * x * x);
      const float t = __fdividef(1.0F, fmaf(0.5F * kRootHalf, fabsf(x), 1.0F)), u = (t - kErfcMiddle) * (1 / kErfcHalf);
      constexpr float kPolynomial[] = {kErfc[0], kErfc[1], kErfc[2], kErfc[3], kErfc[4], kErfc[5], kErfc[6], kErfc[7], kErfc[8], kErfc[9]};
      float r = kPolynomial[9];
#pragma unroll
      for (int k = 8; k >= 0; --k) r = fmaf(r, u, kPolynomial[k]);
      const float tail = 0.5F * gauss * t * r;
      below = x < 0 ? tail : 1 - tail;
    }
  }
};

/// GELU(x) / x.
template <class T, Gelu kForm>
__device__ __forceinline__ float gelu_factor(float x) {
  if constexpr (kForm == Gelu::kTanh)
    return gelu_gate<T>(x);
  else
    return Normal<T>(x).below;
}

template <class T, Gelu kForm>
__device__ __forceinline__ float gelu_slope(float x) {
  if constexpr (kForm == Gelu::kTanh) {
    // (1 + t)/2 + x/2 (1 - t^2) u' with t = 2s - 1
    const float s = gelu_gate<T>(x), slope = kScale * fmaf(3 * kCubic * x, x, 1.0F);
    return fmaf(2 * x * s * (1 - s), slope, s);
  } else {
    const Normal<T> normal(x);
    return fmaf(kGaussAtZero * x, normal.gauss, normal.below);
  }
}

/// GELU of a gate and its derivative.
template <class T, Gelu kForm>
struct GeluGate {
  float value, slope;
  __device__ __forceinline__ explicit GeluGate(float gate) : value(gate * gelu_factor<T, kForm>(gate)), slope(gelu_slope<T, kForm>(gate)) {}
};

template <class T, int N, Gelu kForm>
__global__ void __launch_bounds__(kBlock) gelu_forward_kernel(const T* x, T* y, int64_t count) {
  const int64_t first = (int64_t{blockIdx.x} * kBlock * kAccesses + threadIdx.x) * N;
  float values[kAccesses][N];
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) load_vector(x + first + a * kBlock * N, count - first - a * kBlock * N, values[a]);
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) {
#pragma unroll
    for (float& value : values[a]) value *= gelu_factor<T, kForm>(value);
    store_vector(y + first + a * kBlock * N, count - first - a * kBlock * N, values[a]);
  }
}

template <class T, int N, Gelu kForm>
__global__ void __launch_bounds__(kBlock) gelu_backward_kernel(const T* dy, const T* x, T* dx, int64_t count) {
  const int64_t first = (int64_t{blockIdx.x} * kBlock * kAccesses + threadIdx.x) * N;
  float gradients[kAccesses][N], values[kAccesses][N];
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) {
    const int64_t i = first + a * kBlock * N;
    load_vector(dy + i, count - i, gradients[a]);
    load_vector(x + i, count - i, values[a]);
  }
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) {
#pragma unroll
    for (int i = 0; i < N; ++i) gradients[a][i] *= gelu_slope<T, kForm>(values[a][i]);
    store_vector(dx + first + a * kBlock * N, count - first - a * kBlock * N, gradients[a]);
  }
}

unsigned blocks_of(int64_t count, int64_t each) { return static_cast<unsigned>(ceil_div(count, each)); }

/// `Activation` is a template of the dtype.
template <template <class> class Activation>
void gated_forward(Context& ctx, const Tensor& gate_up, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  dispatch_gpu_float(y.dtype(), [&]<class T>(T) {
    const T* const from = gate_up.data<T>();
    T* const to = y.data<T>();
    const bool aligned = aligned_rows(columns, from, to);
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    const auto kernel = aligned ? gated_forward_kernel<T, kVector<T>, Activation<T>> : gated_forward_kernel<T, 1, Activation<T>>;
    for_row_ranges(rows, row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(blocks_of(count * row_accesses, kBlock)), dim3(kBlock)}, from + first * 2 * columns, to + first * columns,
             count * row_accesses, row_accesses, columns);
    });
  });
}

template <template <class> class Activation>
void gated_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  dispatch_gpu_float(dy.dtype(), [&]<class T>(T) {
    const T *const gradients = dy.data<T>(), *const from = gate_up.data<T>();
    T* const to = dgate_up.data<T>();
    const bool aligned = aligned_rows(columns, gradients, from, to);
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    const auto kernel = aligned ? gated_backward_kernel<T, kVector<T>, Activation<T>> : gated_backward_kernel<T, 1, Activation<T>>;
    for_row_ranges(rows, row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(blocks_of(count * row_accesses, kBlock)), dim3(kBlock)}, gradients + first * columns, from + first * 2 * columns,
             to + first * 2 * columns, count * row_accesses, row_accesses, columns);
    });
  });
}

template <class T>
using GeluTanh = GeluGate<T, Gelu::kTanh>;
template <class T>
using GeluErf = GeluGate<T, Gelu::kErf>;

template <Gelu kForm>
void gelu_forward_of(Context& ctx, const Tensor& x, const Tensor& y) {
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    const bool aligned = aligned_16(from, to);
    const auto kernel = aligned ? gelu_forward_kernel<T, kVector<T>, kForm> : gelu_forward_kernel<T, 1, kForm>;
    launch(ctx, kernel, {dim3(blocks_of(x.numel(), kBlock * kAccesses * (aligned ? kVector<T> : 1))), dim3(kBlock)}, from, to, x.numel());
  });
}

template <Gelu kForm>
void gelu_backward_of(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T *const gradients = dy.data<T>(), *const from = x.data<T>();
    T* const to = dx.data<T>();
    const bool aligned = aligned_16(gradients, from, to);
    const auto kernel = aligned ? gelu_backward_kernel<T, kVector<T>, kForm> : gelu_backward_kernel<T, 1, kForm>;
    launch(ctx, kernel, {dim3(blocks_of(x.numel(), kBlock * kAccesses * (aligned ? kVector<T> : 1))), dim3(kBlock)}, gradients, from, to, x.numel());
  });
}

}  // namespace

void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y) { gated_forward<Silu>(ctx, gate_up, y); }

void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_backward<Silu>(ctx, dy, gate_up, dgate_up);
}

void geglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, Gelu form) {
  form == Gelu::kErf ? gated_forward<GeluErf>(ctx, gate_up, y) : gated_forward<GeluTanh>(ctx, gate_up, y);
}

void geglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, Gelu form) {
  form == Gelu::kErf ? gated_backward<GeluErf>(ctx, dy, gate_up, dgate_up) : gated_backward<GeluTanh>(ctx, dy, gate_up, dgate_up);
}

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y, Gelu form) {
  form == Gelu::kErf ? gelu_forward_of<Gelu::kErf>(ctx, x, y) : gelu_forward_of<Gelu::kTanh>(ctx, x, y);
}

void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx, Gelu form) {
  form == Gelu::kErf ? gelu_backward_of<Gelu::kErf>(ctx, dy, x, dx) : gelu_backward_of<Gelu::kTanh>(ctx, dy, x, dx);
}

}  // namespace trireme::cuda
