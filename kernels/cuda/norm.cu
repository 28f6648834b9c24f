#include "kernels/cuda/norm.h"

#include <type_traits>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

// A row is divided into accesses of N elements. A thread processes every blockDim.x-th access, at most C of them, and keeps them packed in registers
// between passes. C = 0 means that the row is too long for that: every pass rereads it. A block processes one long row, or several rows of one warp
// each. Only LayerNorm (kCentred) subtracts the mean.

namespace trireme::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kRowThreads = 256;  // threads per row; more only if their registers do not suffice
constexpr int kNarrowRows = 4;    // rows in a block of one-warp rows

template <int N, int C, class Body>
__device__ __forceinline__ void each_access(int columns, Body body) {
  if constexpr (C == 0) {
    for (int column = static_cast<int>(threadIdx.x) * N; column < columns; column += static_cast<int>(blockDim.x) * N) body(0, column);
  } else {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int column = (c * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
      if (column < columns) body(c, column);
    }
  }
}

/// This thread's elements of a row.
template <class T, int N, int C>
struct Row {
  const T* memory;
  Packed<T, N> kept[C == 0 ? 1 : C];

  __device__ __forceinline__ explicit Row(const T* row) : memory(row) {}
  __device__ __forceinline__ void load(int columns) {
    if constexpr (C > 0) each_access<N, C>(columns, [&](int c, int column) { kept[c].load(memory + column); });
  }
  __device__ __forceinline__ void get(int c, int column, float (&values)[N]) const {
    if constexpr (C > 0) {
      kept[c].get(values);
    } else {
      load_vector(memory + column, values);
    }
  }
};

/// Replaces x by x + added, rounded to T, and stores it: the statistics must be those of the row that backward reads.
template <class T, int N, int C>
__device__ __forceinline__ void add_into(Row<T, N, C>& x, const T* added, T* sum, int columns) {
  Row<T, N, C> other(added);
  other.load(columns);
  each_access<N, C>(columns, [&](int c, int column) {
    float a[N], b[N];
    x.get(c, column, a);
    other.get(c, column, b);
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] += b[i];
    Packed<T, N> packed;
    packed.set(a);
    packed.store(sum + column);
    if constexpr (C > 0) x.kept[c] = packed;
  });
  x.memory = sum;
}

struct Statistics {
  float* mean;  // LayerNorm only
  float* rstd;
};

/// `added` and `sum`: the second summand and the destination of the sum, or both null.
template <class T, int N, int C, bool kCentred>
__global__ void __launch_bounds__(kMostThreads) norm_forward(const T* x, const T* added, T* sum, const T* __restrict__ w, const T* __restrict__ b,
                                                             float epsilon, T* y, Statistics out, int64_t rows, int columns) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // only whole warps return: with several rows per block, each is one warp
  const int64_t begin = row * columns;
  Row<T, N, C> values(x + begin);
  values.load(columns);
  if (added != nullptr) add_into(values, added + begin, sum + begin, columns);

  float mean = 0;
  if constexpr (kCentred) {
    float total = 0;
    each_access<N, C>(columns, [&](int c, int column) {
      float v[N];
      values.get(c, column, v);
#pragma unroll
      for (int i = 0; i < N; ++i) total += v[i];
    });
    mean = block_sum(total) / static_cast<float>(columns);
  }
  float squares = 0;
  each_access<N, C>(columns, [&](int c, int column) {
    float v[N];
    values.get(c, column, v);
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(v[i] - mean, v[i] - mean, squares);
  });
  const float rstd = 1 / sqrtf(block_sum(squares) / static_cast<float>(columns) + epsilon);

  each_access<N, C>(columns, [&](int c, int column) {
    float v[N], weight[N], bias[N];
    values.get(c, column, v);
    load_vector(w + column, weight);
    if constexpr (kCentred) load_vector(b + column, bias);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      v[i] = (v[i] - mean) * rstd * weight[i];
      if constexpr (kCentred) v[i] += bias[i];
    }
    store_vector(y + begin + column, v);
  });
  if (threadIdx.x == 0) {
    out.rstd[row] = rstd;
    if constexpr (kCentred) out.mean[row] = mean;
  }
}

/// With n = (x - mean) * rstd and g = dy*w:   dx = rstd * (g - mean(g) - n * mean(g*n)) + residual; RMSNorm omits mean and mean(g).
template <class T, int N, int C, bool kCentred>
__global__ void __launch_bounds__(kMostThreads)
    norm_backward_input(const T* dy, const T* x, const T* __restrict__ w, Statistics in, const T* residual, T* dx, int64_t rows, int columns) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t begin = row * columns;
  // Both passes use the weights. In fp32 at full depth they would not fit in registers beside the other rows, and the second pass reads the cache.
  Row<T, N, sizeof(T) == 2 ? C : 0> weights(w);
  Row<T, N, C> gradients(dy + begin), values(x + begin), past(residual == nullptr ? nullptr : residual + begin);
  gradients.load(columns);
  values.load(columns);
  weights.load(columns);
  if (residual != nullptr) past.load(columns);
  const float rstd = in.rstd[row], mean = kCentred ? in.mean[row] : 0;

  float sums[2] = {0, 0};  // of g*n and g
  each_access<N, C>(columns, [&](int c, int column) {
    float g[N], n[N], weight[N];
    gradients.get(c, column, g);
    values.get(c, column, n);
    weights.get(c, column, weight);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      g[i] *= weight[i];
      sums[0] = fmaf(g[i], (n[i] - mean) * rstd, sums[0]);
      if constexpr (kCentred) sums[1] += g[i];
    }
  });
  if constexpr (kCentred) {
    block_sum(sums);
  } else {
    sums[0] = block_sum(sums[0]);
  }
  const float mean_gn = sums[0] / static_cast<float>(columns), mean_g = sums[1] / static_cast<float>(columns);

  each_access<N, C>(columns, [&](int c, int column) {
    float g[N], n[N], weight[N];
    gradients.get(c, column, g);
    values.get(c, column, n);
    weights.get(c, column, weight);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = rstd * (g[i] * weight[i] - mean_g - (n[i] - mean) * rstd * mean_gn);
    if (residual != nullptr) {
      float r[N];
      past.get(c, column, r);
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] += r[i];
    }
    store_vector(dx + begin + column, g);
  });
}

/// Calls run(N, C, shape) with the access width, accesses per thread and block shape for rows of `columns` elements of T.
template <class T, class Run>
void choose_rows(int64_t rows, int64_t columns, bool aligned, Run&& run) {
  TRIREME_CHECK(columns <= INT32_MAX / 2, "a row of ", columns, " columns is too long");
  constexpr int kWide = kVector<T>, kDeepest = 32 / kWide;  // at most 32 elements per thread
  constexpr int kSingles = 8;
  const int64_t accesses = aligned ? columns / kWide : columns;
  const auto with = [&]<int N, int C>(std::integral_constant<int, N> n, std::integral_constant<int, C> c) {
    const int64_t threads = C == 0 ? kMostThreads : ceil_div(ceil_div(accesses, std::max(C, 1)), kWarp) * kWarp;
    const unsigned height = threads == kWarp ? kNarrowRows : 1;
    run(n, c, Shape3{dim3(static_cast<unsigned>(ceil_div(rows, height))), dim3(static_cast<unsigned>(threads), height)});
  };
  constexpr std::integral_constant<int, kWide> wide;
  constexpr std::integral_constant<int, 1> single;
  if (!aligned) {
    if (accesses <= kSingles * kMostThreads) return with(single, std::integral_constant<int, kSingles>{});
    return with(single, std::integral_constant<int, 0>{});
  }
  const int64_t depth = ceil_div(accesses, accesses <= 4 * kWarp ? kWarp : kRowThreads);
  if (depth <= 1) return with(wide, std::integral_constant<int, 1>{});
  if (depth <= 2) return with(wide, std::integral_constant<int, 2>{});
  if (depth <= 4) return with(wide, std::integral_constant<int, 4>{});
  if (accesses <= kDeepest * kMostThreads) return with(wide, std::integral_constant<int, kDeepest>{});
  return with(wide, std::integral_constant<int, 0>{});
}

const void* raw_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

/// Norm of x + added, or of x if `added` is undefined.
template <bool kCentred>
void forward(Context& ctx, const Tensor& x, const Tensor& added, const Tensor& sum, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y,
             const Tensor& mean, const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T *values = x.data<T>(), *second = static_cast<const T*>(raw_or_null(added)), *weight = w.data<T>();
    const T* bias = static_cast<const T*>(raw_or_null(b));
    T *total = added.defined() ? sum.data<T>() : nullptr, *out = y.data<T>();
    const Statistics statistics{kCentred ? mean.data<float>() : nullptr, rstd.data<float>()};
    choose_rows<T>(rows, columns, aligned_rows(columns, values, second, weight, bias, total, out), [&](auto n, auto c, const Shape3& shape) {
      launch(ctx, norm_forward<T, n(), c(), kCentred>, shape, values, second, total, weight, bias, static_cast<float>(epsilon), out, statistics, rows,
             static_cast<int>(columns));
    });
  });
}

template <bool kCentred>
void backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd, const Tensor& residual,
                    const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T *gradients = dy.data<T>(), *values = x.data<T>(), *weight = w.data<T>(), *past = static_cast<const T*>(raw_or_null(residual));
    T* out = dx.data<T>();
    const Statistics statistics{kCentred ? mean.data<float>() : nullptr, rstd.data<float>()};
    choose_rows<T>(rows, columns, aligned_rows(columns, gradients, values, weight, past, out), [&](auto n, auto c, const Shape3& shape) {
      launch(ctx, norm_backward_input<T, n(), c(), kCentred>, shape, gradients, values, weight, statistics, past, out, rows,
             static_cast<int>(columns));
    });
  });
}

}  // namespace

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  forward<false>(ctx, x, {}, {}, w, {}, epsilon, y, {}, rstd);
}

void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd) {
  forward<false>(ctx, a, b, sum, w, {}, epsilon, y, {}, rstd);
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx) {
  backward_input<false>(ctx, dy, x, w, {}, rstd, residual, dx);
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  forward<true>(ctx, x, {}, {}, w, b, epsilon, y, mean, rstd);
}

void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  forward<true>(ctx, a, b, sum, w, bias, epsilon, y, mean, rstd);
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx) {
  backward_input<true>(ctx, dy, x, w, mean, rstd, residual, dx);
}

}  // namespace trireme::cuda
