#include "trainer/islands/update_strategy.h"

#include <string>
#include <utility>

namespace trireme {
namespace {

/// training.local. A forecast of memory (Device::kMeta) runs few steps, so each of them has the outer steps of a round.
class OuterSteps : public UpdateStrategy {
 public:
  OuterSteps(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages) : UpdateStrategy(ctx, config.training) {
    const DType master = precision_of(config.training).master;
    shared_ = std::make_unique<SharedShards>(ctx, stages, master);
    local_ = std::make_unique<LocalUpdates>(ctx, mesh, stages, *shared_, config.training.local, master);
  }

  void end_step(const EndedStep& ended) override {
    const bool rehearses = ctx_.device == Device::kMeta;
    if (rehearses || rounds_.has_outer_step(ended.step + 1)) note("outer step after step ", ended.step + 1);
    ctx_.arena->set_phase(MemoryPhase::kOptimizer);
    if (rehearses) local_->synchronise_all(ctx_, ended.counts_shard);
    if (!rehearses && !local_->after_step(ctx_, rounds_, ended.step + 1, ended.counts_shard)) return;
    figures_ = {.outer = ScalarReadback(ctx_, local_->figures()), .outer_bytes = local_->sent_bytes()};
  }
  IslandFigures take_figures() override { return std::exchange(figures_, {}); }
  OuterResult outer_result(const std::vector<double>& figures, double bytes) const override { return local_->result(figures, bytes); }
  void start_run() override {
    local_->start_run(ctx_);
    start_round();
  }
  Tensor outer_momentum(size_t stage, size_t unit) const override { return local_->momentum(stage, unit); }
  double outer_bytes() const override { return local_->round_bytes(); }

 private:
  std::unique_ptr<LocalUpdates> local_;
  IslandFigures figures_;
};

}  // namespace

std::optional<AppliedUpdate> UpdateStrategy::take_update(int64_t, double, int64_t, const ComputeGradient&) { return {}; }

void UpdateStrategy::end_step(const EndedStep&) { throw InternalError("OUTER or EXCHANGE in a run without islands of their own"); }

OuterResult UpdateStrategy::outer_result(const std::vector<double>&, double) const { throw InternalError("figures of an outer step without one"); }

void UpdateStrategy::start_round() {
  if (shared_ && !keeps_island_weights()) shared_->set(ctx_);
  islands_agree_ = true;
}

void UpdateStrategy::weights_replaced() {
  if (shared_) shared_->set(ctx_);
  start_run();
}

void UpdateStrategy::take_shared_weights() {
  if (keeps_island_weights()) shared_->take(ctx_);
}

void UpdateStrategy::note(const char* what, int64_t number) {
  if (progress_ != nullptr) progress_->act(what + std::to_string(number));
}

std::unique_ptr<ScopedWait> UpdateStrategy::waiting_for(const char* what) {
  return progress_ == nullptr ? nullptr : std::make_unique<ScopedWait>(*progress_, Progress::Wait{what, {}, 0, {}});
}

void SharedWeights::exchange() {
  if (!exchanges_) return;
  updates_.shared_->exchange(updates_.ctx_);
  updates_.has_shared_weights_ = !updates_.has_shared_weights_;
}

std::unique_ptr<UpdateStrategy> make_update_strategy(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages) {
  if (config.training.local.steps) return std::make_unique<OuterSteps>(ctx, config, mesh, stages);
  if (is_asynchronous(config.training)) return make_asynchronous_strategy(ctx, config, mesh, stages);
  return std::make_unique<UpdateStrategy>(ctx, config.training);
}

}  // namespace trireme
