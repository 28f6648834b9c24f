#include "parallel/sharding/unit.h"

#include <algorithm>

namespace trireme {

Param* Unit::add(std::vector<ParamSpec> specs) {
  params_.push_back(std::make_unique<Param>());
  params_.back()->specs = std::move(specs);
  numel_ += params_.back()->numel();
  return params_.back().get();
}

int64_t Unit::shard_numel(int64_t numel, int shards) {
  const int64_t aligned = shards * kShardAlignment;
  return (numel + aligned - 1) / aligned * kShardAlignment;
}

void Unit::bind_values(const Tensor& flat) const {
  int64_t offset = 0;
  for (const auto& param : params_) {
    param->value = flat.defined() ? flat.flat_view(offset, param->local_shape()) : Tensor();
    offset += param->numel();
  }
}

void Unit::bind_grads(const Tensor& flat) const {
  int64_t offset = 0;
  for (const auto& param : params_) {
    param->grad = flat.defined() ? flat.flat_view(offset, param->local_shape()) : Tensor();
    offset += param->numel();
  }
}

std::vector<Unit::Segment> Unit::segments(int64_t begin, int64_t end) const {
  std::vector<Segment> found;
  int64_t offset = 0;
  for (const auto& param : params_) {
    for (const ParamSpec& spec : param->specs) {
      const int64_t first = std::max(begin, offset);
      const int64_t last = std::min(end, offset + spec.numel());
      if (first < last) found.push_back({&spec, first, first - offset, last - first});
      offset += spec.numel();
    }
  }
  return found;
}

MatrixRange Unit::Segment::matrix_range() const {
  const Box& box = spec->box;
  const int64_t held = box.numel();  // the rows beyond the box are padding
  return {spec->name, spec->shape, box.start, box.extent, std::min(param_begin, held), std::min(param_begin + count, held)};
}

Tensor Unit::slice(const Tensor& shard_tensor, const Segment& segment) const {
  return shard_tensor.flat(segment.flat_begin - owned_begin(), segment.count);
}

}  // namespace trireme
