#include "kernels/ops/hogwild.h"

#include <atomic>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/update_rules.h"

namespace trireme {
namespace {

template <class C, class T>
void hogwild_range(const UpdateScalars<C>& scalars, const T* g, T* w, int64_t begin, int64_t end) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);  // so it works between processes, too
  C none[1];
  for (int64_t i = begin; i < end; ++i) {
    const C gradient = g[i];
    if (gradient == C(0) && scalars.decay == C(1)) continue;
    const std::atomic_ref<T> shared(w[i]);
    T before = shared.load(std::memory_order_relaxed), after;
    do {
      C weight = before;
      SgdRule::update(scalars, gradient, weight, none);
      after = static_cast<T>(weight);
    } while (!shared.compare_exchange_weak(before, after, std::memory_order_relaxed));
  }
}

template <class C, class T>
void hogwild_on_host(const Context& ctx, const AdamW& hyper, const double* scalars, std::span<const UpdateSlice> slices) {
  if (scalars[kAccepted] == 0) return;
  for (const UpdateSlice& slice : slices) {
    const UpdateScalars<C> step = update_scalars<C>(hyper, scalars, slice.decay);
    cpu::for_elements(ctx, slice.w.numel(), [&step, g = slice.g.data<T>(), w = slice.w.data<T>()](int64_t begin, int64_t end) {
      hogwild_range<C, T>(step, g, w, begin, end);
    });
  }
}

template <class T>
void read_on_host(const Tensor& shared, const Tensor& own) {
  T *const from = shared.data<T>(), *const to = own.data<T>();
  for (int64_t i = 0; i < own.numel(); ++i) to[i] = std::atomic_ref<T>(from[i]).load(std::memory_order_relaxed);
}

template <class T>
void write_on_host(const Tensor& own, const Tensor& shared) {
  T *const from = own.data<T>(), *const to = shared.data<T>();
  for (int64_t i = 0; i < own.numel(); ++i) std::atomic_ref<T>(to[i]).store(from[i], std::memory_order_relaxed);
}

void no_cuda_kernel_of_hogwild() { throw InternalError("hogwild has no CUDA kernels"); }

}  // namespace

void hogwild_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices) {
  if (slices.empty()) return;
  const DType dtype = slices.front().w.dtype();
  Operation operation(ctx, "hogwild_step", {{"scalars", scalars, {kStepScalars}, DType::kF64}});
  for (const UpdateSlice& s : slices) {
    operation.operand({"w", s.w, s.w.shape(), dtype, Passes::kReadAndWritten});
    operation.operand({"g", s.g, s.w.shape(), dtype});
  }
  const double* const on_host = ctx.device == Device::kCpu || ctx.device == Device::kReference ? scalars.data<double>() : nullptr;
  operation.run(dtype, no_cuda_kernel_of_hogwild, FastCpu{[&] { hogwild_on_host<float, float>(ctx, hyper, on_host, slices); }},
                [&]<class T>(T) { hogwild_on_host<double, T>(ctx, hyper, on_host, slices); });
}

void read_shared(Context& ctx, const Tensor& shared, const Tensor& own) {
  Operation operation(ctx, "read_shared", {{"shared", shared, own.shape(), own.dtype()}, {"own", own, own.shape(), own.dtype()}});
  operation.run(own.dtype(), no_cuda_kernel_of_hogwild, [&]<class T>(T) { read_on_host<T>(shared, own); });
}

void write_shared(Context& ctx, const Tensor& own, const Tensor& shared) {
  Operation operation(ctx, "write_shared", {{"own", own, own.shape(), own.dtype()}, {"shared", shared, own.shape(), own.dtype()}});
  operation.run(own.dtype(), no_cuda_kernel_of_hogwild, [&]<class T>(T) { write_on_host<T>(own, shared); });
}

}  // namespace trireme
