#include "trainer/loop/layer_gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/ops/transfer.h"
#include "trainer/model/declare.h"

namespace trireme {

LayerGradients::LayerGradients(const ModelConfig& model) : layers_(trainable_layer_groups(model)), last_used_(layers_.size(), 0) {}

void LayerGradients::set(NamedSquares squares) {
  squares_ = std::move(squares);
  if (layer_of_.empty())
    for (const auto& [name, square] : squares_)
      layer_of_.push_back(static_cast<size_t>(std::ranges::find(layers_, layer_group(name)) - layers_.begin()));
  TRIREME_CHECK(layer_of_.size() == squares_.size(), "a step has the gradients of ", squares_.size(), " parameters, the first one of ",
                layer_of_.size());
}

void LayerGradients::count_step() {
  ++steps_;
  for (size_t i = 0; i < squares_.size(); ++i)
    if (squares_[i].second != 0) last_used_[layer_of_[i]] = steps_;
}

std::vector<LayerGradient> LayerGradients::gather(Communicator& ranks, double loss_scale) const {
  const Tensor squares = host_tensor({std::ssize(layers_)}, DType::kF64), last_used = host_tensor({std::ssize(layers_)}, DType::kF64);
  std::fill_n(squares.data<double>(), layers_.size(), 0.0);
  for (size_t i = 0; i < squares_.size(); ++i) squares.data<double>()[layer_of_[i]] += squares_[i].second;
  std::ranges::copy(last_used_, last_used.data<double>());
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  ranks.all_reduce(host, squares, ReduceOp::kSum).wait(host);
  ranks.all_reduce(host, last_used, ReduceOp::kMax).wait(host);
  std::vector<LayerGradient> all;
  for (size_t i = 0; i < layers_.size(); ++i)
    all.push_back({layers_[i], std::sqrt(squares.data<double>()[i]) / loss_scale, steps_ - static_cast<int64_t>(last_used.data<double>()[i])});
  return all;
}

}  // namespace trireme
