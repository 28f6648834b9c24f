#include "kernels/cpu/optimizer.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {
namespace {

template <class T>
double sum_of_squares(const Context& ctx, const Tensor& x) {
  constexpr int64_t kRound = 1024;  // blocks per parallel loop: 4 Mi elements
  std::array<double, kRound> partial;
  double total = 0;
  for (int64_t first = 0; first < x.numel(); first += kRound * kSquaresBlock) {
    const int64_t count = std::min(kRound * kSquaresBlock, x.numel() - first), blocks = (count + kSquaresBlock - 1) / kSquaresBlock;
    const SumOfSquares<T> arguments{.x = x.data<T>() + first, .count = count, .partial = partial.data()};
    run_kernel(ctx, typed_kernels<T>(ctx).sum_of_squares, arguments, blocks, grain_of(kSquaresBlock));
    for (int64_t b = 0; b < blocks; ++b) total += partial[static_cast<size_t>(b)];
  }
  return total;
}

}  // namespace

void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices) {
  const double* const scalar = scalars.data<double>();
  if (scalar[kAccepted] == 0) return;
  const double beta2 = current_beta2(hyper, scalar);
  std::vector<AdamWUpdate::Slice> parts;
  int64_t count = 0;
  for (const AdamWSlice& slice : slices) {
    const double weight_decay = slice.decay ? hyper.weight_decay : 0;
    parts.push_back({.begin = count,
                     .end = count + slice.w.numel(),
                     .w = slice.w.data<float>(),
                     .g = slice.g.data<float>(),
                     .m = slice.m.data<float>(),
                     .v = slice.v.data<float>(),
                     .decay = static_cast<float>(1.0 - scalar[kLearningRate] * weight_decay)});
    count = parts.back().end;
  }
  const AdamWUpdate arguments{.slices = parts.data(),
                              .count = static_cast<int64_t>(parts.size()),
                              .grad_scale = static_cast<float>(scalar[kGradScale]),
                              .beta1 = static_cast<float>(hyper.beta1),
                              .beta2 = static_cast<float>(beta2),
                              .one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1),
                              .one_minus_beta2 = static_cast<float>(1.0 - beta2),
                              .step_size = static_cast<float>(scalar[kLearningRate] / scalar[kBiasCorrection1]),
                              .root_correction = static_cast<float>(1.0 / std::sqrt(scalar[kBiasCorrection2])),
                              .epsilon = static_cast<float>(hyper.epsilon)};
  run_kernel(ctx, kernels_of(ctx.isa).adamw, arguments, count, kElementsPerThread);
}

void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum, std::span<double> each) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    double squares = 0;
    dispatch_type(tensors[i].dtype(), [&]<class T>(T) { squares = sum_of_squares<T>(ctx, tensors[i]); });
    sum.data<double>()[0] += squares;
    if (!each.empty()) each[i] = squares;
  }
}

}  // namespace trireme::cpu
