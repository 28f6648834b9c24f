#include "kernels/ops/update.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/update.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/update_rules.h"

namespace trireme {
namespace {

/// Updates elements [begin, end) of one slice. C: the type of the arithmetic.
template <class Rule, class C, class T>
void update_range(const UpdateScalars<C>& scalars, const UpdateSlice& slice, int64_t begin, int64_t end) {
  T* const w = slice.w.data<T>();
  const T* const g = slice.g.data<T>();
  T* states[kStateRoom<Rule>];
  for (int k = 0; k < Rule::kStates; ++k) states[k] = slice.state[static_cast<size_t>(k)].data<T>();
  for (int64_t i = begin; i < end; ++i) {
    C weight = w[i], state[kStateRoom<Rule>];
    for (int k = 0; k < Rule::kStates; ++k) state[k] = states[k][i];
    Rule::update(scalars, static_cast<C>(g[i]), weight, state);
    w[i] = static_cast<T>(weight);
    for (int k = 0; k < Rule::kStates; ++k) states[k][i] = static_cast<T>(state[k]);
  }
}

template <class Rule, class C, class T>
void update_on_host(const Context& ctx, const AdamW& hyper, const double* scalars, std::span<const UpdateSlice> slices) {
  if (scalars[kAccepted] == 0) return;
  for (const UpdateSlice& slice : slices) {
    const UpdateScalars<C> step = update_scalars<C>(hyper, scalars, slice.decay);
    const auto range = [&](int64_t begin, int64_t end) { update_range<Rule, C, T>(step, slice, begin, end); };
    cpu::for_elements(ctx, slice.w.numel(), range);
  }
}

template <class Rule>
void update_by_rule(Context& ctx, Operation& operation, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars,
                    std::span<const UpdateSlice> slices) {
  static_assert(static_cast<size_t>(Rule::kStates) <= kMaxStates);
  const double* const on_host = ctx.device == Device::kCpu || ctx.device == Device::kReference ? scalars.data<double>() : nullptr;
  operation.run(
      slices.front().w.dtype(), [&] { cuda::update_step(ctx, optimizer, hyper, scalars, slices); },
      FastCpu{[&] { update_on_host<Rule, float, float>(ctx, hyper, on_host, slices); }},
      [&]<class T>(T) { update_on_host<Rule, double, T>(ctx, hyper, on_host, slices); });
}

template <class C, class T>
void average_on_host(const Context& ctx, double decay, const double* scalars, const Tensor& w, const Tensor& e) {
  if (scalars[kAccepted] == 0) return;
  const C share = static_cast<C>(average_share(decay, scalars[kAcceptedSteps]));
  const auto range = [share, from = w.data<T>(), to = e.data<T>()](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      C average = to[i];
      AverageRule::update(share, static_cast<C>(from[i]), average);
      to[i] = static_cast<T>(average);
    }
  };
  cpu::for_elements(ctx, w.numel(), range);
}

template <class T>
void copy_on_host(const Context& ctx, const double* scalars, const Tensor& from, const Tensor& to) {
  if (scalars[kAccepted] == 0) return;
  const auto range = [source = from.data<T>(), target = to.data<T>()](int64_t begin, int64_t end) {
    std::copy(source + begin, source + end, target + begin);
  };
  cpu::for_elements(ctx, from.numel(), range);
}

void adamw_by_its_own_kernels(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices) {
  std::vector<AdamWSlice> own;
  for (const UpdateSlice& s : slices) own.push_back({s.w, s.g, s.state[0], s.state[1], s.decay});
  adamw_step(ctx, hyper, scalars, own);
}

}  // namespace

void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices) {
  if (slices.empty()) return;
  const DType dtype = slices.front().w.dtype();
  Operation operation(ctx, "update_step", {{"scalars", scalars, {kStepScalars}, DType::kF64}});
  for (const UpdateSlice& s : slices) {
    operation.operand({"w", s.w, s.w.shape(), dtype, Passes::kReadAndWritten});
    operation.operand({"g", s.g, s.w.shape(), dtype});
    for (int k = 0; k < states_read(optimizer); ++k)
      operation.operand(
          {traits_of(optimizer).state_names[static_cast<size_t>(k)], s.state[static_cast<size_t>(k)], s.w.shape(), dtype, Passes::kReadAndWritten});
  }
  switch (optimizer) {
    case Optimizer::kAdamW: return adamw_by_its_own_kernels(ctx, hyper, scalars, slices);
    case Optimizer::kLion: return update_by_rule<LionRule>(ctx, operation, optimizer, hyper, scalars, slices);
    case Optimizer::kSgd: return update_by_rule<SgdRule>(ctx, operation, optimizer, hyper, scalars, slices);
    case Optimizer::kMuon: return update_by_rule<MatrixRule>(ctx, operation, optimizer, hyper, scalars, slices);
  }
}

void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e) {
  Operation operation(
      ctx, "average_step",
      {{"scalars", scalars, {kStepScalars}, DType::kF64}, {"w", w, w.shape(), w.dtype()}, {"e", e, w.shape(), w.dtype(), Passes::kReadAndWritten}});
  const double* const on_host = ctx.device == Device::kCpu || ctx.device == Device::kReference ? scalars.data<double>() : nullptr;
  operation.run(
      w.dtype(), [&] { cuda::average_step(ctx, decay, scalars, w, e); }, FastCpu{[&] { average_on_host<float, float>(ctx, decay, on_host, w, e); }},
      [&]<class T>(T) { average_on_host<double, T>(ctx, decay, on_host, w, e); });
}

void copy_accepted(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to) {
  Operation operation(ctx, "copy_accepted",
                      {{"scalars", scalars, {kStepScalars}, DType::kF64, Passes::kNotCounted},
                       {"from", from, from.shape(), from.dtype()},
                       {"to", to, from.shape(), from.dtype()}});
  const double* const on_host = ctx.device == Device::kCpu || ctx.device == Device::kReference ? scalars.data<double>() : nullptr;
  operation.run(
      from.dtype(), [&] { cuda::copy_accepted(ctx, scalars, from, to); }, [&]<class T>(T) { copy_on_host<T>(ctx, on_host, from, to); });
}

}  // namespace trireme
