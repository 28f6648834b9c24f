#include "kernels/cuda/norm.h"

#include <type_traits>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

// A row is divided into accesses of N elements. A thread processes every blockDim.x-th access, at most C of them, and keeps them packed in registers
// between passes. C = 0 means that the row is too long for that: every pass rereads it. A block processes one long row at a time, or several rows of
// one warp each. Only LayerNorm (kCentred) subtracts the mean.
//
// The gradients of weight and bias are sums over all rows: each block adds those of a slice of the rows, row after row, then the sums of the slices
// are added. Both orders depend only on the shape, so that dw has the same bits whether dx is computed in the same launch or not. Every fused
// multiply-add is written as one, because nvcc chooses for each instantiation which products and sums it fuses.

namespace trireme::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kRowThreads = 256;           // threads per row; more only if their registers do not suffice
constexpr int kNarrowRows = 4;             // rows in a block of one-warp rows
constexpr int kSingles = 8;                // elements per thread of a row without 16-byte accesses
constexpr int64_t kMostShared = 96 << 10;  // bytes of sums in a block, on every GPU from sm_80 on

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
                                                             float offset, float epsilon, T* y, Statistics out, int64_t rows, int columns) {
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
      v[i] = (v[i] - mean) * rstd;
      if constexpr (kCentred) {
        v[i] = fmaf(v[i], weight[i], bias[i]);
      } else {
        v[i] *= weight[i] + offset;
      }
    }
    store_vector(y + begin + column, v);
  });
  if (threadIdx.x == 0) {
    out.rstd[row] = rstd;
    if constexpr (kCentred) out.mean[row] = mean;
  }
}

/// The sums over rows that a thread adds to, those of its own columns: in shared memory, or if the row is too long (C = 0) in the slice's result.
template <int N, int C>
struct ColumnSums {
  float* memory;  ///< belongs to the row of the block in which the thread is, [sums, columns]
  int columns;

  /// Place of element i of an access among the columns. In shared memory it is another element of the access in every group of 32 columns: then neither
  /// lanes that own N consecutive columns nor lanes that own one have bank conflicts.
  __device__ __forceinline__ static int place(int column, int i) { return column + (C == 0 ? i : i ^ column / kWarp % N); }
  __device__ __forceinline__ float& at(int k, int column, int i) const { return memory[k * columns + place(column, i)]; }
};

/// With n = (x - mean) * rstd and g = dy*w:   dx = rstd * (g - mean(g) - n * mean(g*n)) + residual; RMSNorm omits mean and mean(g).
/// A block processes `rows_each` rows. kSums: it also sums dy*n over them, and for LayerNorm dy, into partial[block, sum, column]; dx may then be
/// null.
template <class T, int N, int C, bool kCentred, bool kSums>
__global__ void __launch_bounds__(kMostThreads) norm_backward(const T* dy, const T* x, const T* w, float offset, Statistics in, const T* residual,
                                                              T* dx, float* partial, int64_t rows, int64_t rows_each, int columns) {
  constexpr int kOutputs = kCentred ? 2 : 1;
  const int64_t first = blockIdx.x * rows_each, end = first + rows_each < rows ? first + rows_each : rows;
  [[maybe_unused]] float* of_rows = nullptr;  // the sums of each row of the block, which are added in the end
  ColumnSums<N, C> sums{partial + int64_t{blockIdx.x} * kOutputs * columns, columns};
  if constexpr (kSums && C > 0) {
    TRIREME_DYNAMIC_SHARED(float, shared);
    of_rows = shared;
    sums.memory = of_rows + static_cast<int>(threadIdx.y) * kOutputs * columns;
  }
  if constexpr (kSums) {
    each_access<N, C>(columns, [&](int, int column) {
#pragma unroll
      for (int i = 0; i < kOutputs * N; ++i) sums.at(i / N, column, i % N) = 0;
    });
  }
  // Both passes use the weights. In fp32 at full depth they would not fit in registers beside the other rows, and the second pass reads the cache.
  Row<T, N, sizeof(T) == 2 ? C : 0> weights(w);
  if (dx != nullptr) weights.load(columns);

  for (int64_t row = first + threadIdx.y; row < end; row += blockDim.y) {  // with several rows per block, each is one warp
    const int64_t begin = row * columns;
    Row<T, N, C> gradients(dy + begin), values(x + begin), past(residual == nullptr ? nullptr : residual + begin);
    gradients.load(columns);
    values.load(columns);
    if (residual != nullptr) past.load(columns);
    const float rstd = in.rstd[row], mean = kCentred ? in.mean[row] : 0;

    float along[2] = {0, 0};  // sums of g*n and g over the row
    each_access<N, C>(columns, [&](int c, int column) {
      float g[N], n[N], weight[N];
      gradients.get(c, column, g);
      values.get(c, column, n);
#pragma unroll
      for (int i = 0; i < N; ++i) n[i] = (n[i] - mean) * rstd;
      if constexpr (kSums) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          float& sum = sums.at(0, column, i);
          sum = fmaf(g[i], n[i], sum);
          if constexpr (kCentred) sums.at(1, column, i) += g[i];
        }
        if (dx == nullptr) return;
      }
      weights.get(c, column, weight);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        weight[i] += offset;
        along[0] = fmaf(g[i] * weight[i], n[i], along[0]);
        if constexpr (kCentred) along[1] = fmaf(g[i], weight[i], along[1]);
      }
    });
    if (kSums && dx == nullptr) continue;
    if constexpr (kCentred) {
      block_sum(along);
    } else {
      along[0] = block_sum(along[0]);
    }
    const float mean_gn = along[0] / static_cast<float>(columns), mean_g = along[1] / static_cast<float>(columns);

    each_access<N, C>(columns, [&](int c, int column) {
      float g[N], n[N], weight[N];
      gradients.get(c, column, g);
      values.get(c, column, n);
      weights.get(c, column, weight);
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] = fmaf(-((n[i] - mean) * rstd), mean_gn, fmaf(g[i], weight[i] + offset, -mean_g));
      if (residual != nullptr) {
        float r[N];
        past.get(c, column, r);
#pragma unroll
        for (int i = 0; i < N; ++i) g[i] = fmaf(rstd, g[i], r[i]);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) g[i] *= rstd;
      }
      store_vector(dx + begin + column, g);
    });
  }

  if constexpr (kSums && C > 0) {
    __syncthreads();
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    for (int column = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); column < columns; column += threads) {
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) {
        const int place = ColumnSums<N, C>::place(column / N * N, column % N);
        float sum = 0;
        for (int y = 0; y < static_cast<int>(blockDim.y); ++y) sum += of_rows[(y * kOutputs + k) * columns + place];
        partial[(int64_t{blockIdx.x} * kOutputs + k) * columns + column] = sum;
      }
    }
  }
}

constexpr int kSliceWarps = 32;

/// out[column] += sum over the slices: each warp sums every 32nd slice, then the warps' sums are added in order. blockIdx.y selects the output.
__global__ void __launch_bounds__(kSliceWarps* kWarp)
    add_slices(const float* __restrict__ partial, int64_t slices, int columns, float* dw, float* db) {
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t slice = warp; slice < slices; slice += kSliceWarps) sum += partial[(slice * gridDim.y + blockIdx.y) * columns + column];
  }
  TRIREME_SHARED(float[kSliceWarps][kWarp], of_warps);
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int other = 1; other < kSliceWarps; ++other) sum += of_warps[other][lane];
  (blockIdx.y == 0 ? dw : db)[column] += sum;
}

/// Partition of the rows into `count` slices of `rows_each` rows, the last one shorter.
struct Slices {
  int64_t count, rows_each;
};

/// A block per slice: enough of them to fill the GPU, but so few that their sums are small beside the rows.
Slices choose_slices(int64_t rows, int64_t columns, int64_t slice_bytes) {
  constexpr int64_t kElements = int64_t{1} << 20, kFewest = 256, kMost = 1024, kFewestRows = 8;
  static_assert(kFewestRows % kNarrowRows == 0);
  const int64_t fitting = Gpu::kScratchBytes / slice_bytes;
  TRIREME_CHECK(fitting > 0, "norm: gradients of ", slice_bytes, " bytes do not fit in the scratch memory");
  const int64_t most = std::min(std::clamp(kElements / columns, kFewest, kMost), fitting);
  const int64_t rows_each = ceil_div(std::max(ceil_div(rows, most), kFewestRows), kNarrowRows) * kNarrowRows;
  return {ceil_div(rows, rows_each), rows_each};
}

/// Calls run(N, C, shape) with the access width, accesses per thread and block shape for rows of `columns` elements of T, and a grid of a block for each
/// row, or for kNarrowRows rows of up to `narrow` columns. `sum_bytes`: shared memory for the column sums of a row of the block. Neither the alignment
/// nor the presence of sums may change the number of rows in a block of a backward, because the order of additions depends on it.
template <class T, class Run>
void choose_rows(int64_t rows, int64_t columns, bool aligned, int64_t narrow, int64_t sum_bytes, Run&& run) {
  TRIREME_CHECK(columns <= INT32_MAX / 2, "a row of ", columns, " columns is too long");
  constexpr int kWide = kVector<T>, kDeepest = 32 / kWide;  // at most 32 elements per thread
  const int64_t accesses = aligned ? columns / kWide : columns;
  const auto with = [&]<int N, int C>(std::integral_constant<int, N> n, std::integral_constant<int, C> c) {
    const int64_t threads = C == 0 ? kMostThreads : ceil_div(ceil_div(accesses, std::max(C, 1)), kWarp) * kWarp;
    const unsigned height = threads == kWarp ? kNarrowRows : 1;
    run(n, c, Shape3{dim3(static_cast<unsigned>(ceil_div(rows, height))), dim3(static_cast<unsigned>(threads), height)});
  };
  constexpr std::integral_constant<int, kWide> wide;
  constexpr std::integral_constant<int, 1> single;
  constexpr std::integral_constant<int, 0> too_long;
  const bool fits = sum_bytes <= kMostShared;
  if (!aligned) {
    if (fits && accesses <= kSingles * kMostThreads) return with(single, std::integral_constant<int, kSingles>{});
    return with(single, too_long);
  }
  const int64_t depth = ceil_div(accesses, columns <= narrow ? kWarp : kRowThreads);
  if (!fits || accesses > kDeepest * kMostThreads) return with(wide, too_long);
  if (depth <= 1) return with(wide, std::integral_constant<int, 1>{});
  if (depth <= 2) return with(wide, std::integral_constant<int, 2>{});
  if (depth <= 4) return with(wide, std::integral_constant<int, 4>{});
  with(wide, std::integral_constant<int, kDeepest>{});
}

const void* raw_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

/// Norm of x + added, or of x if `added` is undefined.
template <bool kCentred>
void forward(Context& ctx, const Tensor& x, const Tensor& added, const Tensor& sum, const Tensor& w, const Tensor& b, double offset, double epsilon,
             const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T *values = x.data<T>(), *second = static_cast<const T*>(raw_or_null(added)), *weight = w.data<T>();
    const T* bias = static_cast<const T*>(raw_or_null(b));
    T *total = added.defined() ? sum.data<T>() : nullptr, *out = y.data<T>();
    const Statistics statistics{kCentred ? mean.data<float>() : nullptr, rstd.data<float>()};
    const bool aligned = aligned_rows(columns, values, second, weight, bias, total, out);
    choose_rows<T>(rows, columns, aligned, 4 * kVector<T> * kWarp, 0, [&](auto n, auto c, const Shape3& shape) {
      launch(ctx, norm_forward<T, n(), c(), kCentred>, shape, values, second, total, weight, bias, static_cast<float>(offset),
             static_cast<float>(epsilon), out, statistics, rows, static_cast<int>(columns));
    });
  });
}

/// Operands of a backward; those of outputs that are not wanted, and of features that are absent, are undefined.
struct Backward {
  Tensor dy, x, w, mean, rstd, residual, dx, dw, db;
  double offset = 0;  ///< of w
};

template <bool kCentred, bool kSums>
void backward(Context& ctx, const Backward& of) {
  const int64_t rows = of.x.dim(0), columns = of.x.dim(1);
  if (rows == 0 || columns == 0) return;
  constexpr int kOutputs = kCentred ? 2 : 1;
  const int64_t sum_bytes = kOutputs * columns * static_cast<int64_t>(sizeof(float));
  const auto offset = static_cast<float>(of.offset);
  dispatch_gpu_float(of.x.dtype(), [&]<class T>(T) {
    const T *dy = of.dy.data<T>(), *x = of.x.data<T>(), *w = static_cast<const T*>(raw_or_null(of.w));
    const T* const residual = static_cast<const T*>(raw_or_null(of.residual));
    T* const dx = of.dx.defined() ? of.dx.data<T>() : nullptr;
    const Statistics statistics{kCentred ? of.mean.data<float>() : nullptr, of.rstd.data<float>()};
    const bool aligned = aligned_rows(columns, dy, x, w, residual, dx);
    choose_rows<T>(rows, columns, aligned, kSingles * kWarp, sum_bytes, [&](auto n, auto c, Shape3 shape) {
      const auto kernel = norm_backward<T, n(), c(), kCentred, kSums>;
      const int width = static_cast<int>(columns);
      if constexpr (!kSums) {
        launch(ctx, kernel, shape, dy, x, w, offset, statistics, residual, dx, nullptr, rows, shape.block.y, width);
      } else {
        const Slices slices = choose_slices(rows, columns, sum_bytes);
        auto* const partial = static_cast<float*>(ctx.gpu->scratch(slices.count * sum_bytes));
        shape.grid = dim3(static_cast<unsigned>(slices.count));
        if (c() > 0) shape.shared_bytes = shape.block.y * sum_bytes;
        launch(ctx, kernel, shape, dy, x, w, offset, statistics, residual, dx, partial, rows, slices.rows_each, width);
        const Shape3 sum_shape{dim3(static_cast<unsigned>(ceil_div(columns, kWarp)), kOutputs), dim3(kWarp, kSliceWarps)};
        launch(ctx, add_slices, sum_shape, partial, slices.count, width, of.dw.template data<float>(),
               kCentred ? of.db.template data<float>() : nullptr);
      }
    });
  });
}

}  // namespace

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd, double offset) {
  forward<false>(ctx, x, {}, {}, w, {}, offset, epsilon, y, {}, rstd);
}

void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd, double offset) {
  forward<false>(ctx, a, b, sum, w, {}, offset, epsilon, y, {}, rstd);
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx, double offset) {
  backward<false, false>(ctx, {dy, x, w, {}, rstd, residual, dx, {}, {}, offset});
}

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  backward<false, true>(ctx, {dy, x, {}, {}, rstd, {}, {}, dw, {}});
}

void rmsnorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual, const Tensor& dx,
                      const Tensor& dw, double offset) {
  backward<false, true>(ctx, {dy, x, w, {}, rstd, residual, dx, dw, {}, offset});
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  forward<true>(ctx, x, {}, {}, w, b, 0, epsilon, y, mean, rstd);
}

void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  forward<true>(ctx, a, b, sum, w, bias, 0, epsilon, y, mean, rstd);
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx) {
  backward<true, false>(ctx, {dy, x, w, mean, rstd, residual, dx, {}, {}});
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  backward<true, true>(ctx, {dy, x, {}, mean, rstd, {}, {}, dw, db});
}

void layernorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                        const Tensor& residual, const Tensor& dx, const Tensor& dw, const Tensor& db) {
  backward<true, true>(ctx, {dy, x, w, mean, rstd, residual, dx, dw, db});
}

}  // namespace trireme::cuda
