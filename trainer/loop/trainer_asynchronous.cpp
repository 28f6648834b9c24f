// Steps of training.asynchronous. With parameter servers this rank's island computes gradients while others do, and a step is an update that the servers
// have applied. With elastic averaging a step is one of the island, which exchanges its weights with the centre after some of them; with hogwild it is
// one of the island on the weights of all.
#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/ops/transfer.h"
#include "trainer/loop/trainer.h"

namespace trireme {

UpdateRules update_rules(const Config& config) {
  const AsynchronousConfig& asynchronous = config.training.asynchronous;
  const auto islands = static_cast<int>(config.parallel.islands);
  if (averages_elastically(config.training)) return exchange_rules(islands);
  return {.workers = islands,
          .apply_after = static_cast<int>(asynchronous.apply_after),
          .staleness = asynchronous.staleness,
          .discards_late = config.resilience.backup_replicas > 0};
}

void Trainer::make_parameter_server() {
  const TrainingConfig& training = config_.training;
  const AsynchronousConfig& asynchronous = training.asynchronous;
  ServerOptions options;
  options.precision = precision_;
  options.rules = update_rules(config_);
  options.encrypted = is_encrypted(config_.security);
  if (averages_elastically(training)) {
    options.centre = shared_.get();
    options.moving_rate = asynchronous.moving_rate.value();
    server_ = std::make_unique<ParameterServer>(ctx_, *mesh_.islands, stages_, options);
    return;
  }
  options.scales_learning_rate = asynchronous.compensation == StalenessCompensation::kLearningRate;
  options.delay_compensation = asynchronous.compensation == StalenessCompensation::kDelay ? asynchronous.delay_weight : 0;
  options.gradient_clip = training.gradient_clip;
  options.optimizer = {.kind = training.optimizer.name.value(), .hyper = hyper_, .average_decay = training.ema.decay};
  server_ = std::make_unique<ParameterServer>(ctx_, *mesh_.islands, stages_, options);
}

/// Computes gradients until the update of `step` has been applied. All ranks of an island decide alike, by the version of the weights that they have.
Trainer::StepInFlight Trainer::start_asynchronous(const Dataset& data, int64_t step, double learning_rate) {
  if (!round_begin_) start_asynchronous_round(step, learning_rate);
  while (assigned_ && *round_begin_ + assigned_->version <= step) compute_assigned_gradient(data);
  StepInFlight started;
  started.step = step;
  started.applied = server_->take(step);
  islands_agree_ = rounds_.ends_after(step + 1);
  if (islands_agree_) end_asynchronous_round();
  return started;
}

/// What set_order() has of steps [begin, end).
std::vector<int> Trainer::order_of_round(int64_t begin, int64_t end) const {
  std::vector<int> order;
  for (int64_t logged = begin; logged < end && order_.contains(logged); ++logged)
    order.insert(order.end(), order_.at(logged).begin(), order_.at(logged).end());
  return order;
}

void Trainer::start_asynchronous_round(int64_t step, double learning_rate) {
  const int64_t end = rounds_.end_of(step + 1);
  const std::function<double(int64_t)> rates = rates_ ? rates_ : [learning_rate](int64_t) { return learning_rate; };
  round_begin_ = step;
  assigned_ = server_->start_round(step, end - step, accepted_steps_, rates, order_of_round(step, end));
  if (!assigned_) assigned_ = server_->pull();  // the others compute all gradients of a short round
}

/// Computes the gradient of the island's next batch. EXCHANGE at the end of its list sends it, and waits for the weights of the one after it.
void Trainer::compute_assigned_gradient(const Dataset& data) {
  const Assignment assigned = *assigned_;
  const int64_t parts = gradients_per_step(config_), step = *round_begin_ + assigned.batch / parts;
  // The sequences of this gradient in the global batch of the step, and of this data rank among them.
  const int64_t of_rank = std::ssize(batch_) * config_.training.micro_batch_size;
  int64_t sample = (assigned.batch % parts * mesh_.data->size() + mesh_.data->rank()) * of_rank;
  for (Microbatch& microbatch : batch_) microbatch.first_sample = std::exchange(sample, sample + config_.training.micro_batch_size);
  write_inputs(data, step);
  queue_step(training_list_, step);
}

/// EXCHANGE. A forecast of memory has no other islands.
void Trainer::exchange_with_islands() {
  if (ctx_.device == Device::kMeta) return;
  if (hogwild_) return step_without_lock(step_);
  if (!averages_elastically(config_.training)) return push_gradient();
  exchanged_ = average_elastically(step_);
}

void Trainer::push_gradient() {
  GradientFigures figures;
  figures.targets = targets_;
  std::copy_n(sums_.data<double>(), static_cast<size_t>(kStepSums), figures.sums);
  note("sending a gradient of the round after step ", *round_begin_);
  push_and_pull(figures);
}

/// Sends the island's gradient or weights to the servers in the next place of the order of arrivals, and waits for their answer.
void Trainer::push_and_pull(const GradientFigures& figures) {
  const auto waiting = [&] {
    return progress_ == nullptr ? nullptr : std::make_unique<ScopedWait>(*progress_, Progress::Wait{"the parameter servers", {}, 0, {}});
  };
  double ticket = 0;
  if (mesh_.step.rank() == 0) {
    const auto wait = waiting();
    ticket = static_cast<double>(server_->take_ticket());
  }
  ticket = all_reduce_scalar(mesh_.step, ticket, ReduceOp::kSum);
  const auto wait = waiting();
  server_->push(static_cast<int64_t>(ticket), *assigned_, figures);
  assigned_ = server_->pull();
}

/// All islands have the weights after the round. A server has had the optimizer state of its part alone.
void Trainer::end_asynchronous_round() {
  server_->finish_round(ctx_);
  rotate_data(0);  // evaluations have their own places in a batch
  round_begin_.reset();
}

/// What follows `step` (from 0) of this rank's island with elastic averaging. Returns the exchanges that have become known.
Arrivals Trainer::average_elastically(int64_t step) {
  const int64_t every = config_.training.asynchronous.every, end = rounds_.end_of(step + 1), islands = mesh_.shape.islands;
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
  return server_->take_exchanges(ends);
}

/// Hogwild, in place of the update of `step` (from 0).
void Trainer::step_without_lock(int64_t step) {
  const auto waiting = [&] {
    return progress_ == nullptr ? nullptr : std::make_unique<ScopedWait>(*progress_, Progress::Wait{"the other islands", {}, 0, {}});
  };
  ctx_.arena->set_phase(MemoryPhase::kOptimizer);
  if (!round_begin_) {
    const auto wait = waiting();
    hogwild_->start_round(ctx_);
    round_begin_ = step;
  }
  hogwild_->step(ctx_, scalars_);
  if (!rounds_.ends_after(step + 1)) return;
  const auto wait = waiting();
  hogwild_->finish_round(ctx_);
  round_begin_.reset();
}

StepResult Trainer::finish_asynchronous(const StepInFlight& step) {
  StepResult result;
  result.applied = step.applied;
  result.loss = step.applied->loss;
  result.grad_norm = step.applied->grad_norm;
  result.learning_rate = step.applied->learning_rate;
  result.targets = step.applied->targets;
  result.accepted = step.applied->accepted;
  if (result.accepted) ++accepted_steps_;
  return result;
}

}  // namespace trireme
