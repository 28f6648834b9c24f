#include "trainer/loop/local_updates.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"

namespace trireme {
namespace {

/// Adds the squares of the elements of a shard that count.
void add_squares(Context& ctx, const Unit& unit, const Communicator& shard, const Tensor& owned, const Tensor& sum) {
  std::vector<Tensor> counted;
  for (const Unit::Segment& segment : counted_segments(unit, shard)) counted.push_back(Unit::slice(owned, segment, shard.rank()));
  sum_of_squares(ctx, counted, sum);
}

}  // namespace

int64_t Rounds::end_of(int64_t step) const {
  const int64_t end = (step + round - 1) / round * round;
  return last > 0 && step <= last ? std::min(end, last) : end;
}

bool Rounds::is_due(int64_t step, int64_t every) const { return every > 0 && ends_after(step) && step / every > end_before(step) / every; }

Rounds rounds_of(const TrainingConfig& training, int64_t last) { return {training.local.steps.value_or(1), last}; }

LocalUpdates::LocalUpdates(Context& ctx, Mesh& mesh, const std::vector<std::unique_ptr<TransformerStage>>& stages, const LocalConfig& config,
                           DType master)
    : mesh_(mesh), stages_(stages), step_{config.outer_learning_rate, config.outer_momentum, mesh.shape.islands} {
  for (const auto& stage : stages) {
    std::vector<Shards>& units = shards_.emplace_back();
    for (size_t unit = 0; unit < stage->params().units().size(); ++unit) {
      const Shape shape = stage->params().master(static_cast<int>(unit)).shape();
      const auto make = [&] { return Tensor::zeros(ctx, shape, master, MemoryCategory::kOptimizer); };
      units.push_back({make(), make()});
    }
  }
  sums_ = Tensor::zeros(ctx, {3}, DType::kF64, MemoryCategory::kWorkspace);
  for (int64_t i = 0; i < 3; ++i) figures_.push_back(sums_.flat(i, 1));
}

void LocalUpdates::start_round(Context& ctx) {
  for (size_t s = 0; s < stages_.size(); ++s)
    for (size_t u = 0; u < shards_[s].size(); ++u) copy(ctx, stages_[s]->params().master(static_cast<int>(u)), shards_[s][u].theta);
}

void LocalUpdates::start_run(Context& ctx) {
  start_round(ctx);
  for (const std::vector<Shards>& units : shards_)
    for (const Shards& one : units) fill(ctx, 0, one.momentum);
}

void LocalUpdates::synchronise(Context& ctx, bool counts) {
  fill(ctx, 0, sums_);
  for (size_t s = 0; s < stages_.size(); ++s) {
    ParamStore& params = stages_[s]->params();
    for (size_t u = 0; u < shards_[s].size(); ++u) {
      const int unit = static_cast<int>(u);
      const auto& [theta, momentum] = shards_[s][u];
      const Tensor weights = params.master(unit);
      const Tensor sum = Tensor::empty(ctx, weights.shape(), weights.dtype(), MemoryCategory::kCommunication);
      copy(ctx, weights, sum);
      mesh_.islands->all_reduce(ctx, sum, ReduceOp::kSum).wait(ctx);
      outer_step(ctx, step_, sum, weights, theta, momentum);
      if (counts) {
        const Tensor* const squares[] = {&sum, &weights, &theta};
        for (size_t k = 0; k < figures_.size(); ++k) add_squares(ctx, *params.units()[u], params.shard(), *squares[k], figures_[k]);
      }
      copy(ctx, theta, weights);
      params.mark_stale(unit);
    }
  }
  mesh_.world.all_reduce(ctx, sums_, ReduceOp::kSum).wait(ctx);
}

OuterResult LocalUpdates::result(const std::vector<double>& figures) const {
  return {std::sqrt(figures[0] / step_.islands), sent_bytes(), figures[2] > 0 ? std::sqrt(figures[1] / figures[2]) : 0};
}

double LocalUpdates::sent_bytes() const {
  double bytes = 0;
  for (const std::vector<Shards>& units : shards_)
    for (const Shards& one : units) bytes += static_cast<double>(one.theta.bytes());
  return 2.0 * (step_.islands - 1) / step_.islands * bytes;
}

}  // namespace trireme
