#include "parallel/tensor/sample_squares.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/samples.h"

namespace trireme {
namespace {

/// A parameter is counted where the primary copy is. All names that a Param stacks are split alike.
bool counts(const Param& param) { return param.specs.front().is_primary_copy; }
bool is_partial(const Param& param) {
  return std::ranges::any_of(param.specs, [](const ParamSpec& spec) { return spec.partial_over != Partial::kNone; });
}

}  // namespace

SampleSquares::SampleSquares(Context& ctx, const Region& region, int64_t samples, int64_t sequence, DType activations)
    : region_(&region),
      sequence_(sequence),
      gradient_(accumulator_of(activations)),
      squares_(Tensor::zeros(ctx, {samples}, DType::kF64, MemoryCategory::kWorkspace)) {}

void SampleSquares::add_product(Context& ctx, const Param& weight, const Tensor& dy, const Tensor& x) {
  if (is_partial(weight)) {
    return add_rows(ctx, all_rows(), {&weight}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& gradients) {
      linear_backward_weight(ctx, dy.rows(begin, count), x.rows(begin, count), gradients.front());
    });
  }
  if (!counts(weight)) return;
  const int64_t outputs = dy.dim(1), inputs = x.dim(1), rows = sequence_;
  const bool by_rows = size_of(x.dtype()) >= 4 && rows * (outputs + inputs) < outputs * inputs;
  const auto workspace = [&](const Shape& shape) { return Tensor::empty(ctx, shape, gradient_, MemoryCategory::kWorkspace); };
  const Tensor first = workspace(by_rows ? Shape{rows, rows} : Shape{outputs, inputs}), second = by_rows ? workspace({rows, rows}) : Tensor();
  for (int64_t sample = 0; sample < samples(); ++sample) {
    const Tensor own_dy = dy.rows(sample * rows, rows), own_x = x.rows(sample * rows, rows);
    if (by_rows) {
      linear_forward(ctx, own_x, own_x, Tensor(), first);
      linear_forward(ctx, own_dy, own_dy, Tensor(), second);
      add_inner_product(ctx, first, second, 1, value(sample));
    } else {
      linear_backward_weight(ctx, own_dy, own_x, first, false);
      sum_of_squares(ctx, std::span(&first, 1), value(sample));
    }
  }
}

void SampleSquares::add_rows(Context& ctx, const Rows& rows, const std::vector<const Param*>& params,
                             const std::function<void(int64_t, int64_t, const std::vector<Tensor>&)>& add) {
  const bool partial = is_partial(*params.front());
  if ((!partial && !counts(*params.front())) || std::ranges::none_of(params, &Param::trainable)) return;
  std::vector<Tensor> of_all;  // [samples, ...] if partial, else of one sample
  for (const Param* param : params) {
    TRIREME_CHECK(is_partial(*param) == partial && counts(*param) == counts(*params.front()), param->specs.front().name, ": split otherwise");
    of_all.push_back(Tensor::empty(ctx, {partial ? samples() : 1, param->numel()}, gradient_, MemoryCategory::kWorkspace));
    if (partial && param->trainable()) partial_.push_back({param, of_all.back()});
  }
  for (int64_t sample = 0; sample < samples(); ++sample) {
    std::vector<Tensor> gradients;
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor own = of_all[i].rows(partial ? sample : 0, 1);
      fill(ctx, 0, own);
      gradients.push_back(own.view(params[i]->local_shape()));
    }
    const int64_t begin = std::clamp<int64_t>(sample * rows.per_sample - rows.first, 0, rows.count);
    const int64_t end = std::clamp<int64_t>((sample + 1) * rows.per_sample - rows.first, 0, rows.count);
    if (begin < end) add(begin, end - begin, gradients);
    if (partial) continue;
    for (size_t i = params.size(); i-- > 0;)
      if (!params[i]->trainable()) gradients.erase(gradients.begin() + static_cast<std::ptrdiff_t>(i));
    sum_of_squares(ctx, gradients, value(sample));
  }
}

void SampleSquares::finish(Context& ctx) {
  int64_t elements = 0;
  for (const PartialGradients& one : partial_) elements += one.values.numel();
  if (elements == 0) return;
  const Tensor all = Tensor::empty(ctx, {elements}, partial_.front().values.dtype(), MemoryCategory::kWorkspace);
  int64_t begin = 0;
  for (PartialGradients& one : partial_) {
    const Tensor packed = all.flat(begin, one.values.numel());
    copy(ctx, one.values, packed);
    one.values = packed.view(one.values.shape());
    begin += packed.numel();
  }
  region_->tensor().all_reduce(ctx, all, ReduceOp::kSum).wait(ctx);
  for (const PartialGradients& one : partial_) {
    if (!counts(*one.param)) continue;
    for (int64_t sample = 0; sample < samples(); ++sample) {
      const Tensor own = one.values.rows(sample, 1);
      sum_of_squares(ctx, std::span(&own, 1), value(sample));
    }
  }
  partial_.clear();
}

}  // namespace trireme
