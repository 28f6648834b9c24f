#include "kernels/cuda/update.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/slices.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops/update_rules.h"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;

template <class T, int kStates>
struct UpdatePart {
  T* w;
  const T* g;
  T* state[kStates > 0 ? kStates : 1];
  int64_t count;
  int head;
  bool decay;
};
template <class T, int kStates>
using UpdateBatch = Batch<UpdatePart<T, kStates>, 64, 8192>;
static_assert(sizeof(UpdateBatch<float, static_cast<int>(kMaxStates)>) + sizeof(AdamW) + sizeof(void*) <= 4096);

__device__ inline UpdateScalars<float> scalars_of(const AdamW& hyper, bool decay, const double* scalars) {
  return {static_cast<float>(scalars[kGradScale]), static_cast<float>(scalars[kLearningRate]), static_cast<float>(hyper.beta1),
          static_cast<float>(hyper.beta2), static_cast<float>(decay ? 1 - scalars[kLearningRate] * hyper.weight_decay : 1.0)};
}

/// Updates elements [begin, end), N per access. All arrays are read before any is written.
template <class Rule, int N, class T>
__device__ __forceinline__ void update_range(const UpdateScalars<float>& scalars, const UpdatePart<T, Rule::kStates>& part, int64_t begin,
                                             int64_t end) {
  for (int64_t i = begin + static_cast<int>(threadIdx.x) * N; i < end; i += kBlock * N) {
    float w[N], g[N], state[kStateRoom<Rule>][N];
    load_vector(part.w + i, end - i, w);
    load_vector(part.g + i, end - i, g);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) load_vector(part.state[s] + i, end - i, state[s]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float own[kStateRoom<Rule>];
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) own[s] = state[s][k];
      Rule::update(scalars, g[k], w[k], own);
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) state[s][k] = own[s];
    }
    store_vector(part.w + i, end - i, w);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) store_vector(part.state[s] + i, end - i, state[s]);
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kBlock) update_kernel(UpdateBatch<T, Rule::kStates> batch, AdamW hyper, const double* scalars) {
  if (scalars[kAccepted] == 0) return;
  const Chunk chunk = chunk_of(batch);
  const UpdatePart<T, Rule::kStates> part = batch.slice[chunk.slice];
  const UpdateScalars<float> step = scalars_of(hyper, part.decay, scalars);
  if (part.head == kNoVectors) return update_range<Rule, 1>(step, part, chunk.begin, chunk.end);
  if (chunk.head > 0) update_range<Rule, 1>(step, part, 0, chunk.head);
  update_range<Rule, kVector<T>>(step, part, chunk.begin, chunk.end);
}

template <int N, class T>
__global__ void __launch_bounds__(kBlock) average_kernel(double decay, const double* scalars, int64_t count, const T* w, T* e) {
  if (scalars[kAccepted] == 0) return;
  const auto share = static_cast<float>(average_share(decay, scalars[kAcceptedSteps]));
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float weight[N], average[N];
    load_vector(w + i, count - i, weight);
    load_vector(e + i, count - i, average);
#pragma unroll
    for (int k = 0; k < N; ++k) AverageRule::update(share, weight[k], average[k]);
    store_vector(e + i, count - i, average);
  }
}

template <int N>
__global__ void __launch_bounds__(kBlock) copy_accepted_kernel(const double* scalars, int64_t count, const float* from, float* to) {
  if (scalars[kAccepted] == 0) return;
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float value[N];
    load_vector(from + i, count - i, value);
    store_vector(to + i, count - i, value);
  }
}

template <class Rule>
void update_by_rule(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices) {
  static_assert(Rule::kStates <= 1, "head_of() below lists the arrays one by one");
  dispatch_gpu_float(slices.front().w.dtype(), [&]<class T>(T) {
    using Batch = UpdateBatch<T, Rule::kStates>;
    for_each_batch<Batch>(
        slices,
        [](const UpdateSlice& s, int /*place*/) {
          T *const w = s.w.data<T>(), *const g = s.g.data<T>(), *const m = Rule::kStates > 0 ? s.state[0].data<T>() : w;
          return UpdatePart<T, Rule::kStates>{w, g, {m}, s.w.numel(), head_of(s.w.numel(), w, g, m), s.decay};
        },
        [&](const Batch& batch) {
          launch(ctx, update_kernel<Rule, T>, {dim3(static_cast<unsigned>(batch.blocks)), dim3(kBlock)}, batch, hyper, scalars.data<double>());
        });
  });
}

}  // namespace

void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices) {
  switch (optimizer) {
    case Optimizer::kAdamW: break;
    case Optimizer::kLion: return update_by_rule<LionRule>(ctx, hyper, scalars, slices);
    case Optimizer::kSgd: return update_by_rule<SgdRule>(ctx, hyper, scalars, slices);
    case Optimizer::kMuon: return update_by_rule<MatrixRule>(ctx, hyper, scalars, slices);
  }
  throw InternalError(concat(traits_of(optimizer).name, " has no update rule: it has its own kernels"));
}

void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e) {
  if (w.numel() == 0) return;
  dispatch_gpu_float(w.dtype(), [&]<class T>(T) {
    const auto queue = [&]<int N>(std::integral_constant<int, N>) {
      launch(ctx, average_kernel<N, T>, {stride_grid(ctx, ceil_div(w.numel(), N), kBlock), dim3(kBlock)}, decay, scalars.data<double>(), w.numel(),
             w.data<T>(), e.data<T>());
    };
    if (aligned_16(w.data<T>(), e.data<T>())) return queue(std::integral_constant<int, kVector<T>>{});
    queue(std::integral_constant<int, 1>{});
  });
}

void copy_accepted(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to) {
  TRIREME_CHECK(from.dtype() == DType::kF32, "the state of gradients on a GPU is fp32, not ", name_of(from.dtype()));
  if (from.numel() == 0) return;
  const float* const source = from.data<float>();
  float* const target = to.data<float>();
  const auto queue = [&]<int N>(std::integral_constant<int, N>) {
    launch(ctx, copy_accepted_kernel<N>, {stride_grid(ctx, ceil_div(from.numel(), N), kBlock), dim3(kBlock)}, scalars.data<double>(), from.numel(),
           source, target);
  };
  if (aligned_16(source, target)) return queue(std::integral_constant<int, kVector<float>>{});
  queue(std::integral_constant<int, 1>{});
}

}  // namespace trireme::cuda
