#include "kernels/cuda/optimizer.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/slices.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;

// ---- AdamW ----

template <class T>
struct AdamWPart {
  T* w;
  const T* g;
  T* m;
  T* v;
  int64_t count;
  int head;
  bool decay;
};
template <class T>
using AdamWBatch = Batch<AdamWPart<T>, 72, 8192>;
static_assert(sizeof(AdamWBatch<float>) + sizeof(AdamW) + sizeof(void*) <= 4096);

/// The scalars of a step, in the precision of the update.
struct AdamWStep {
  float grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float decay;            ///< 1 - lr * weight_decay
  float step_size;        ///< lr / c1
  float root_correction;  ///< 1 / sqrt(c2)
  float epsilon;
};

__device__ inline AdamWStep step_of(const AdamW& hyper, bool decay, const double* scalars) {
  AdamWStep step;
  const double beta2 = current_beta2(hyper, scalars);
  step.grad_scale = static_cast<float>(scalars[kGradScale]);
  step.beta1 = static_cast<float>(hyper.beta1);
  step.beta2 = static_cast<float>(beta2);
  step.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  step.one_minus_beta2 = static_cast<float>(1 - beta2);
  step.decay = static_cast<float>(decay ? 1 - scalars[kLearningRate] * hyper.weight_decay : 1.0);
  step.step_size = static_cast<float>(scalars[kLearningRate] / scalars[kBiasCorrection1]);
  step.root_correction = static_cast<float>(1 / sqrt(scalars[kBiasCorrection2]));
  step.epsilon = static_cast<float>(hyper.epsilon);
  return step;
}

template <int N>
__device__ __forceinline__ void update(const AdamWStep& step, float (&w)[N], const float (&g)[N], float (&m)[N], float (&v)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float grad = g[k] * step.grad_scale;
    m[k] = step.beta1 * m[k] + step.one_minus_beta1 * grad;
    v[k] = step.beta2 * v[k] + step.one_minus_beta2 * grad * grad;
    w[k] = w[k] * step.decay - step.step_size * m[k] / (sqrtf(v[k]) * step.root_correction + step.epsilon);
  }
}

/// Updates elements [begin, end), N per access. Reads kUnroll vectors of all four arrays before it computes.
template <int N, class T>
__device__ __forceinline__ void update_range(const AdamWStep& step, const AdamWPart<T>& part, int64_t begin, int64_t end) {
  constexpr int kUnroll = N >= 8 ? 1 : 2, kStride = kBlock * N;
  int64_t i = begin + static_cast<int>(threadIdx.x) * N;
  for (; i + kStride * (kUnroll - 1) + N <= end; i += kStride * kUnroll) {
    float w[kUnroll][N], g[kUnroll][N], m[kUnroll][N], v[kUnroll][N];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      load_vector(part.w + i + u * kStride, w[u]);
      load_vector(part.g + i + u * kStride, g[u]);
      load_vector(part.m + i + u * kStride, m[u]);
      load_vector(part.v + i + u * kStride, v[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      update(step, w[u], g[u], m[u], v[u]);
      store_vector(part.w + i + u * kStride, w[u]);
      store_vector(part.m + i + u * kStride, m[u]);
      store_vector(part.v + i + u * kStride, v[u]);
    }
  }
  for (; i < end; i += kStride) {
    float w[N], g[N], m[N], v[N];
    load_vector(part.w + i, end - i, w);
    load_vector(part.g + i, end - i, g);
    load_vector(part.m + i, end - i, m);
    load_vector(part.v + i, end - i, v);
    update(step, w, g, m, v);
    store_vector(part.w + i, end - i, w);
    store_vector(part.m + i, end - i, m);
    store_vector(part.v + i, end - i, v);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock) adamw_kernel(AdamWBatch<T> batch, AdamW hyper, const double* scalars) {
  if (scalars[kAccepted] == 0) return;
  const Chunk chunk = chunk_of(batch);
  const AdamWPart<T> part = batch.slice[chunk.slice];
  TRIREME_SHARED(AdamWStep, shared_step);
  if (threadIdx.x == 0) shared_step = step_of(hyper, part.decay, scalars);  // divisions in double, once per block
  __syncthreads();
  const AdamWStep step = shared_step;
  if (part.head == kNoVectors) return update_range<1>(step, part, chunk.begin, chunk.end);
  if (chunk.head > 0) update_range<1>(step, part, 0, chunk.head);
  update_range<kVector<T>>(step, part, chunk.begin, chunk.end);
}

__global__ void scale_loss_kernel(const double* scalars, double* factor) { *factor *= scalars[kLossScale]; }

__global__ void mark_outlier_kernel(const double* scalars, double* sums) { sums[kOutliers] = sums[kLosses] > scalars[kRankLossLimit] ? 1 : 0; }

__global__ void finalize_step_scalars_kernel(AdamW hyper, LossScaling scaling, const double* sums, double clip, double* norm, double* scalars) {
  const double scale = scalars[kLossScale];
  const double root = sqrt(sums[kSquares]) / scale;
  const bool finite = root - root == 0;
  const double loss_limit = scalars[kLossLimit];
  const bool loss_within = loss_limit - loss_limit != 0 || fabs(sums[kLosses]) <= loss_limit;  // an infinite limit judges nothing
  const bool accepted = finite && !(root > scalars[kNormLimit]) && loss_within && sums[kOutliers] <= scalars[kOutlierLimit];
  const double steps = scalars[kAcceptedSteps] + (accepted ? 1 : 0);
  *norm = root;
  scalars[kAccepted] = accepted ? 1 : 0;
  scalars[kGradScale] = (clip > 0 && root > clip ? clip / root : 1) / scale;
  scalars[kAcceptedSteps] = steps;
  scalars[kBiasCorrection1] = 1 - pow(hyper.beta1, steps);
  scalars[kBiasCorrection2] = 1 - pow(hyper.beta2, fmin(steps, hyper.second_moment_steps));
  const double clean = finite ? scalars[kCleanSteps] + (accepted ? 1 : 0) : 0;
  const bool grows = clean >= static_cast<double>(scaling.growth_interval);
  scalars[kLossScale] = !finite ? fmax(scale / 2, scaling.minimum) : grows ? fmin(scale * 2, scaling.maximum) : scale;
  scalars[kCleanSteps] = grows ? 0 : clean;
}

// ---- reductions over gradients: one partial result per chunk, then one block reduces the partial results ----

template <class T>
struct GradientPart {
  const T* x;
  int64_t count;
  int head;
  int place;  ///< index among the tensors of the call
};
template <class T>
using GradientBatch = Batch<GradientPart<T>, 128, 32768>;
static_assert(sizeof(GradientBatch<float>) + 2 * sizeof(void*) <= 4096);

/// Calls body(values) for every vector of a chunk; elements beyond the end are zero.
template <class T, class Body>
__device__ __forceinline__ void for_each_vector(const GradientPart<T>& part, const Chunk& chunk, Body&& body) {
  constexpr int N = kVector<T>, kUnroll = 4, kStride = kBlock * N;
  int64_t i = chunk.begin + static_cast<int>(threadIdx.x) * N;
  for (; i + kStride * (kUnroll - 1) + N <= chunk.end; i += kStride * kUnroll) {
    Packed<T, N> packed[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) packed[u].load(part.x + i + u * kStride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float x[N];
      packed[u].get(x);
      body(x);
    }
  }
  for (; i < chunk.end; i += kStride) {
    float x[N];
    load_vector(part.x + i, chunk.end - i, x);
    body(x);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock) squares_kernel(GradientBatch<T> batch, double* partial) {
  constexpr int N = kVector<T>;
  const Chunk chunk = chunk_of(batch);
  const GradientPart<T> part = batch.slice[chunk.slice];
  double sums[N] = {};
  const auto square = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
  if (static_cast<int>(threadIdx.x) < chunk.head) sums[0] = square(to_float(part.x[threadIdx.x]));
  for_each_vector(part, chunk, [&](const float(&x)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += square(x[k]);
  });
  double total = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) total += sums[k];
  total = block_sum(total);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

constexpr int kLastBlock = 1024;

__global__ void __launch_bounds__(kLastBlock) add_partials_kernel(int64_t count, const double* partial, double* sum) {
  double total = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kLastBlock) total += partial[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *sum += total;
}

template <class T>
__global__ void __launch_bounds__(kBlock) non_finite_kernel(GradientBatch<T> batch, const double* scalars, int* partial) {
  if (scalars[kAccepted] != 0) return;
  const Chunk chunk = chunk_of(batch);
  const GradientPart<T> part = batch.slice[chunk.slice];
  const auto is_bad = [](float x) { return !(fabsf(x) <= 3.402823466e38F); };
  int bad = static_cast<int>(threadIdx.x) < chunk.head && is_bad(to_float(part.x[threadIdx.x]));
  for_each_vector(part, chunk, [&](const float(&x)[kVector<T>]) {
#pragma unroll
    for (int k = 0; k < kVector<T>; ++k) bad |= is_bad(x[k]);
  });
  bad = block_max(bad, 0);
  if (threadIdx.x == 0) partial[blockIdx.x] = bad != 0 ? part.place : INT_MAX;
}

__global__ void __launch_bounds__(kLastBlock) first_partial_kernel(int64_t count, const double* scalars, const int* partial, double* index) {
  const bool rejected = scalars[kAccepted] == 0;  // otherwise `partial` was not written
  int lowest = INT_MAX;
  if (rejected) {
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += kLastBlock) lowest = partial[i] < lowest ? partial[i] : lowest;
  }
  lowest = -block_max(-lowest, -INT_MAX);
  if (threadIdx.x == 0) *index = lowest == INT_MAX ? -1 : lowest;
}

template <class T>
int64_t chunks_of(std::span<const Tensor> tensors) {
  int64_t chunks = 0;
  for (const Tensor& x : tensors) chunks += 1 + x.numel() / GradientBatch<T>::kChunk;  // upper bound
  return chunks;
}

/// Queues kernel(batch, arguments..., destination of its partial results) for each batch. Returns the number of partial results.
template <class T, class Partial, class... Parameters, class... Arguments>
int64_t reduce_chunks(const Context& ctx, std::span<const Tensor> tensors, Partial* partial, void (*kernel)(Parameters...),
                      const Arguments&... arguments) {
  int64_t blocks = 0;
  for_each_batch<GradientBatch<T>>(
      tensors,
      [](const Tensor& x, int place) {
        const T* const data = x.data<T>();
        return GradientPart<T>{data, x.numel(), head_of(x.numel(), data), place};
      },
      [&](const GradientBatch<T>& batch) {
        launch(ctx, kernel, {dim3(static_cast<unsigned>(batch.blocks)), dim3(kBlock)}, batch, arguments..., partial + blocks);
        blocks += batch.blocks;
      });
  return blocks;
}

}  // namespace

void scale_loss(Context& ctx, const Tensor& scalars, const Tensor& factor) {
  launch(ctx, scale_loss_kernel, {dim3(1), dim3(1)}, scalars.data<double>(), factor.data<double>());
}

void mark_outlier(Context& ctx, const Tensor& scalars, const Tensor& sums) {
  launch(ctx, mark_outlier_kernel, {dim3(1), dim3(1)}, scalars.data<double>(), sums.data<double>());
}

void finalize_step_scalars(Context& ctx, const AdamW& hyper, const LossScaling& scaling, const Tensor& sums, double clip, const Tensor& norm,
                           const Tensor& scalars) {
  launch(ctx, finalize_step_scalars_kernel, {dim3(1), dim3(1)}, hyper, scaling, sums.data<double>(), clip, norm.data<double>(),
         scalars.data<double>());
}

void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices) {
  dispatch_gpu_float(slices.front().w.dtype(), [&]<class T>(T) {
    for_each_batch<AdamWBatch<T>>(
        slices,
        [](const AdamWSlice& s, int /*place*/) {
          T *const w = s.w.data<T>(), *const g = s.g.data<T>(), *const m = s.m.data<T>(), *const v = s.v.data<T>();
          return AdamWPart<T>{w, g, m, v, s.w.numel(), head_of(s.w.numel(), w, g, m, v), s.decay};
        },
        [&](const AdamWBatch<T>& batch) {
          launch(ctx, adamw_kernel<T>, {dim3(static_cast<unsigned>(batch.blocks)), dim3(kBlock)}, batch, hyper, scalars.data<double>());
        });
  });
}

void first_non_finite(Context& ctx, std::span<const Tensor> tensors, const Tensor& scalars, const Tensor& index) {
  dispatch_gpu_float(tensors.empty() ? DType::kF32 : tensors.front().dtype(), [&]<class T>(T) {
    auto* const partial = static_cast<int*>(ctx.gpu->scratch(chunks_of<T>(tensors) * static_cast<int64_t>(sizeof(int))));
    const int64_t count = reduce_chunks<T>(ctx, tensors, partial, non_finite_kernel<T>, scalars.data<double>());
    launch(ctx, first_partial_kernel, {dim3(1), dim3(kLastBlock)}, count, scalars.data<double>(), partial, index.data<double>());
  });
}

void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum) {
  dispatch_gpu_float(tensors.front().dtype(), [&]<class T>(T) {
    auto* const partial = static_cast<double*>(ctx.gpu->scratch(chunks_of<T>(tensors) * static_cast<int64_t>(sizeof(double))));
    const int64_t count = reduce_chunks<T>(ctx, tensors, partial, squares_kernel<T>);
    launch(ctx, add_partials_kernel, {dim3(1), dim3(kLastBlock)}, count, partial, sum.data<double>());
  });
}

}  // namespace trireme::cuda
