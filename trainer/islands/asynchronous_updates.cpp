// The strategies of training.asynchronous. With parameter servers this rank's island computes gradients while others do, and a step is an update that
// the servers have applied. With elastic averaging a step is one of the island, which exchanges its weights with the centre after some of them. With
// hogwild it is one of the island on the weights of all.
#include <algorithm>
#include <utility>

#include "parallel/comm/communicator.h"
#include "trainer/islands/hogwild.h"
#include "trainer/islands/update_strategy.h"

namespace trireme {

namespace {

ServerOptions server_options(const Config& config, const SharedShards* centre) {
  const TrainingConfig& training = config.training;
  const AsynchronousConfig& asynchronous = training.asynchronous;
  ServerOptions options;
  options.precision = precision_of(training);
  options.rules = update_rules(config);
  options.encrypted = is_encrypted(config.security);
  if (centre != nullptr) {
    options.centre = centre;
    options.moving_rate = asynchronous.moving_rate.value();
    return options;
  }
  options.scales_learning_rate = asynchronous.compensation == StalenessCompensation::kLearningRate;
  options.delay_compensation = asynchronous.compensation == StalenessCompensation::kDelay ? asynchronous.delay_weight : 0;
  options.gradient_clip = training.gradient_clip;
  options.optimizer = optimizer_options(training);
  return options;
}

/// A strategy with servers. A forecast of memory (Device::kMeta) has no other islands, so it exchanges nothing.
class ServedUpdates : public UpdateStrategy {
 public:
  /// `centre`: with elastic averaging.
  ServedUpdates(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages, std::unique_ptr<SharedShards> centre)
      : UpdateStrategy(ctx, config.training), mesh_(mesh) {
    shared_ = std::move(centre);
    server_ = std::make_unique<ParameterServer>(ctx, *mesh.islands, stages, server_options(config, shared_.get()));
  }

  void set_order(std::map<int64_t, std::vector<int>> order) override { order_ = std::move(order); }
  double server_bytes() const override { return server_->bytes_per_push(); }

 protected:
  /// What set_order() has of steps [begin, end).
  std::vector<int> order_of_round(int64_t begin, int64_t end) const {
    std::vector<int> order;
    for (int64_t logged = begin; logged < end && order_.contains(logged); ++logged)
      order.insert(order.end(), order_.at(logged).begin(), order_.at(logged).end());
    return order;
  }
  /// Sends the island's gradient or weights to the servers in the next place of the order of arrivals, and waits for their answer.
  void push_and_pull(const GradientFigures& figures) {
    double ticket = 0;
    if (mesh_.step.rank() == 0) {
      const auto wait = waiting_for("the parameter servers");
      ticket = static_cast<double>(server_->take_ticket());
    }
    ticket = all_reduce_scalar(mesh_.step, ticket, ReduceOp::kSum);
    const auto wait = waiting_for("the parameter servers");
    server_->push(static_cast<int64_t>(ticket), *assigned_, figures);
    assigned_ = server_->pull();
  }

  Mesh& mesh_;
  std::unique_ptr<ParameterServer> server_;
  std::optional<Assignment> assigned_;  ///< the next gradient or exchange of this rank's island; none between rounds
  std::optional<int64_t> round_begin_;  ///< the first step, from 0, of the round that has begun

 private:
  std::map<int64_t, std::vector<int>> order_;  ///< set_order
};

class ServedGradients : public ServedUpdates {
 public:
  ServedGradients(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages)
      : ServedUpdates(ctx, config, mesh, stages, nullptr), gradients_per_step_(gradients_per_step(config)) {}

  void set_learning_rates(std::function<double(int64_t)> rates) override { rates_ = std::move(rates); }
  /// All ranks of an island decide alike, by the version of the weights that they have.
  std::optional<AppliedUpdate> take_update(int64_t step, double learning_rate, int64_t accepted, const ComputeGradient& compute) override {
    if (ctx_.device == Device::kMeta) return {};
    if (!round_begin_) start_round_at(step, learning_rate, accepted);
    while (assigned_ && *round_begin_ + assigned_->version <= step)
      compute(*round_begin_ + assigned_->batch / gradients_per_step_, assigned_->batch % gradients_per_step_);
    const AppliedUpdate update = server_->take(step);
    note_step(step);
    if (islands_agree_) {
      // All islands have the weights already. Now they get the optimizer state, of which each server had a part.
      server_->finish_round(ctx_);
      round_begin_.reset();
    }
    return update;
  }

  /// Sends the gradient that `compute` has computed, and waits for the weights of the one after it.
  void end_step(const EndedStep& ended) override {
    if (ctx_.device == Device::kMeta) return;
    GradientFigures figures;
    figures.targets = ended.targets;
    std::copy_n(ended.sums.data<double>(), static_cast<size_t>(kStepSums), figures.sums);
    note("sending a gradient of the round after step ", *round_begin_);
    push_and_pull(figures);
  }

 private:
  void start_round_at(int64_t step, double learning_rate, int64_t accepted) {
    const int64_t end = rounds_.end_of(step + 1);
    const std::function<double(int64_t)> rates = rates_ ? rates_ : [learning_rate](int64_t) { return learning_rate; };
    round_begin_ = step;
    assigned_ = server_->start_round(step, end - step, accepted, rates, order_of_round(step, end));
    if (!assigned_) assigned_ = server_->pull();  // the others compute all gradients of a short round
  }

  int64_t gradients_per_step_;
  std::function<double(int64_t)> rates_;  ///< set_learning_rates
};

class ElasticAveraging : public ServedUpdates {
 public:
  ElasticAveraging(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages)
      : ServedUpdates(ctx, config, mesh, stages, std::make_unique<SharedShards>(ctx, stages, precision_of(config.training).master)) {}

  void end_step(const EndedStep& ended) override {
    if (ctx_.device == Device::kMeta) return;
    const int64_t step = ended.step, every = training_.asynchronous.every, end = rounds_.end_of(step + 1), islands = mesh_.shape.islands;
    if (!round_begin_) {
      round_begin_ = step;
      const int64_t before = step / every, exchanges = end / every - before;
      if (exchanges > 0) assigned_ = server_->start_round(islands * before, islands * exchanges, 0, {}, order_of_round(step, end));
    }
    if ((step + 1) % every == 0) {
      note("exchanging weights with the centre after step ", step + 1);
      push_and_pull({});
    }
    const bool ends = step + 1 == end;
    if (ends) {
      server_->finish_round(ctx_);
      round_begin_.reset();
    }
    exchanged_ = server_->take_exchanges(ends);
  }
  IslandFigures take_figures() override { return {.exchanged = std::exchange(exchanged_, {})}; }

 private:
  std::optional<Arrivals> exchanged_;
};

class LockFreeUpdates : public UpdateStrategy {
 public:
  LockFreeUpdates(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages) : UpdateStrategy(ctx, config.training) {
    if (ctx.device != Device::kMeta)
      hogwild_ = std::make_unique<Hogwild>(*mesh.islands, stages, precision_of(training_).master, optimizer_options(training_).hyper);
  }

  /// In place of the update of the step.
  void end_step(const EndedStep& ended) override {
    if (ctx_.device == Device::kMeta) return;
    ctx_.arena->set_phase(MemoryPhase::kOptimizer);
    if (!in_round_) {
      const auto wait = waiting_for("the other islands");
      hogwild_->start_round(ctx_);
      in_round_ = true;
    }
    hogwild_->step(ctx_, ended.scalars);
    if (!rounds_.ends_after(ended.step + 1)) return;
    const auto wait = waiting_for("the other islands");
    hogwild_->finish_round(ctx_);
    in_round_ = false;
  }

 private:
  std::unique_ptr<Hogwild> hogwild_;  ///< null in a forecast of memory
  bool in_round_ = false;
};

}  // namespace

std::unique_ptr<UpdateStrategy> make_asynchronous_strategy(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages) {
  if (shares_weights(config.training)) return std::make_unique<LockFreeUpdates>(ctx, config, mesh, stages);
  if (averages_elastically(config.training)) return std::make_unique<ElasticAveraging>(ctx, config, mesh, stages);
  return std::make_unique<ServedGradients>(ctx, config, mesh, stages);
}

}  // namespace trireme
