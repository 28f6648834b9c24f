#include "trainer/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/blocking.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/exposed.h"
#include "trainer/loop/recompute.h"

namespace trireme {

namespace {

Stages make_stages(Context& ctx, const Config& config, Mesh& mesh, const std::vector<int>& stage_rank, bool for_training,
                   const std::vector<Recompute>& recompute) {
  const StageOptions options{.sequence_parallel = config.parallel.sequence_parallel,
                             .policy = zero_policy(config.parallel),
                             .precision = precision_of(config.training),
                             .compression = compression_of(config),
                             .parameters = parameter_encoding_of(config),
                             .aggregation = aggregation_of(config),
                             .seed = static_cast<uint64_t>(config.run.seed),
                             .logits_chunk = logits_chunk(config),
                             .blocks_per_unit = blocks_per_unit(config),
                             .recompute = recompute,
                             .recompute_elementwise = config.training.recompute_elementwise,
                             .with_gradients = for_training,
                             .clips_samples = for_training && is_private(config.security),
                             .with_activation_maxima = for_training && config.observe.activations.every > 0};
  Stages stages;
  for (int s = 0; s < static_cast<int>(stage_rank.size()); ++s) {
    if (stage_rank[static_cast<size_t>(s)] != mesh.at.pipeline) continue;
    const StageRange range = stage_range(*config.parallel.layers_per_stage, s);
    TransformerStage* const first = range.last() && s > 0 && stage_rank.front() == mesh.at.pipeline ? stages.front().get() : nullptr;
    stages.push_back(std::make_unique<TransformerStage>(ctx, config.model, mesh, range, options, first));
  }
  return stages;
}

StepResult result_of(const AppliedUpdate& update) {
  StepResult result;
  result.applied = update;
  result.loss = update.loss;
  result.grad_norm = update.grad_norm;
  result.learning_rate = update.learning_rate;
  result.targets = update.targets;
  result.accepted = update.accepted;
  return result;
}

}  // namespace

Trainer::Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training)
    : Trainer(ctx, world, config, for_training,
              // Without a backward nothing is recomputed, and a recompute budget does not apply.
              for_training ? recompute_policy(config) : std::vector<Recompute>(static_cast<size_t>(config.model.layers))) {}

Trainer::Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute)
    : Trainer(ctx, world, config, for_training, recompute, lowered_schedule(config)) {}

Trainer::Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute,
                 const LoweredSchedule& schedule)
    : ctx_(ctx),
      config_(config),
      blocking_(config.parallel.overlap ? nullptr : blocking(world)),
      mesh_(blocking_ ? *blocking_ : world, mesh_shape(config.parallel), static_cast<int>(config.model.kv_heads.value())),
      stage_rank_(schedule.stage_rank),
      stages_(make_stages(ctx, config_, mesh_, stage_rank_, for_training, recompute)),
      last_(!stages_.empty() && stages_.back()->range().last() ? stages_.back().get() : nullptr),
      program_(ctx, config_, mesh_, stages_, schedule),
      scalars_(ctx, config_, mesh_, stages_, for_training),
      batches_(ctx, config_, mesh_, schedule.rerouting) {
  program_.cut(std::ranges::max(batches_.split()), batches_.missing());
  if (!for_training) {
    updates_ = std::make_unique<UpdateStrategy>(ctx, config_.training);
    return;
  }
  if (is_private(config_.security)) privacy_ = std::make_unique<PrivateGradients>(ctx, config_, mesh_, stages_);
  handle_actions();
  const OptimizerOptions optimizer = optimizer_options(config_.training);
  for (const auto& stage : stages_) stage->make_optimizer(ctx, optimizer, precision_of(config_.training), scalars_.scalars());
  updates_ = make_update_strategy(ctx, config_, mesh_, stages_);
}

/// What the actions do that concern all stages of this rank.
void Trainer::handle_actions() {
  program_.on(ActionType::kAggregate, [this](Context&, const Action&) { aggregate_gradients(); });
  program_.on(ActionType::kNorm, [this](Context&, const Action&) { scalars_.norm(counts_shard(), counts_loss() ? last_->loss_sum() : Tensor()); });
  for (const ActionType end : {ActionType::kOuter, ActionType::kExchange}) program_.on(end, [this](Context&, const Action&) { end_step(); });
  if (!privacy_) return;
  program_.on(ActionType::kClipSamples, [this](Context&, const Action& action) { privacy_->start_clip(action.microbatch); });
  program_.on(ActionType::kWaitClip, [this](Context&, const Action& action) { privacy_->wait_clip(action.microbatch); });
  program_.on(ActionType::kNoise, [this](Context&, const Action&) { privacy_->add_noise(owned_boxes(), program_.step()); });
  if (!adds_noise_on_each_rank(config_)) return;
  for (const auto& stage : stages_) {
    stage->grads().before_reduce(
        [this, of = stage.get()](Context&, int unit, const Tensor& full) { privacy_->add_noise_of_rank(*of, unit, full, program_.step()); });
  }
}

void Trainer::place(const MicroBatchSplit& split, int rotation) {
  batches_.place(split, rotation);
  program_.cut(std::ranges::max(split), batches_.missing());
}

void Trainer::set_micro_batches(const MicroBatchSplit& split) {
  const MicroBatchSplit& now = batches_.split();
  TRIREME_CHECK(
      split.size() == now.size() && std::reduce(split.begin(), split.end()) == std::reduce(now.begin(), now.end()) && std::ranges::min(split) >= 1,
      "a split of ", std::reduce(split.begin(), split.end()), " micro-batches over ", split.size(), " data ranks");
  place(split, 0);
}

void Trainer::set_privacy(const crypto::PrivateRandom& random, double noise) {
  TRIREME_CHECK(privacy_ != nullptr, "samples and noise are drawn where no step is private");
  privacy_->set_source(random, noise);
}

TransformerStage& Trainer::stage() const {
  TRIREME_CHECK(stages_.size() == 1, stages_.size(), " stages on this rank");
  return *stages_.front();
}

void Trainer::watch(Progress& progress) {
  progress_ = &progress;
  program_.watch(progress);
  updates_->watch(progress);
}

void Trainer::note(const char* what, int64_t number) {
  if (progress_ != nullptr) progress_->act(what + std::to_string(number));
}

StepResult Trainer::step(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits) {
  return finish(start(data, step, learning_rate, limits));
}

/// Reads the batch of a step, and writes the factor of its gradient. Returns the factor of its loss.
double Trainer::read_inputs(const Dataset& data, int64_t step) {
  note("reading the batch of step ", step + 1);
  {
    const TracedRegion reading(trace_, Cause::kDataWait);
    if (privacy_ && ctx_.device != Device::kMeta) {
      const PrivateGradients::Drawn drawn = privacy_->draw(data, step);
      if (drawn.split != batches_.split()) place(drawn.split, 0);
      figures_ = batches_.read_samples(data, drawn.samples);
    } else {
      figures_ = batches_.read_step(data, step);
    }
  }
  const double factor = 1.0 / static_cast<double>(std::max<int64_t>(figures_.targets, 1));
  double of_gradient = factor;
  // A robust rule compares means over the tokens of each data rank; they do not depend on what others say about theirs.
  if (is_robust(config_.security)) of_gradient = 1.0 / static_cast<double>(std::max<int64_t>(figures_.local_targets, 1));
  if (privacy_) of_gradient = privacy_->sample_weight() / static_cast<double>(config_.training.sequence_length);
  for (const auto& stage : stages_) write_scalar(ctx_, of_gradient, stage->loss_factor());
  return factor;
}

Trainer::StepInFlight Trainer::start(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits) {
  StepInFlight started{.step = step, .learning_rate = learning_rate};
  started.applied = updates_->take_update(step, learning_rate, scalars_.accepted_steps(), [&](int64_t of_step, int64_t part) {
    batches_.place_gradient(part);
    read_inputs(data, of_step);
    program_.train(batches_.microbatches(), scalars_.scalars(), of_step);
  });
  if (started.applied) {
    if (updates_->islands_agree()) rotate_data(0);  // evaluations have their own places in a batch
    return started;
  }
  started.loss_factor = read_inputs(data, step);
  scalars_.set_limits(limits, learning_rate, figures_);
  updates_->note_step(step);
  program_.train(batches_.microbatches(), scalars_.scalars(), step);
  started.outcome = scalars_.read_back();
  started.batch = figures_;
  started.distances = distances_;
  started.islands = updates_->take_figures();
  return started;
}

StepResult Trainer::finish(const StepInFlight& step) {
  if (step.applied) {
    if (step.applied->accepted) scalars_.count_accepted();
    return result_of(*step.applied);
  }
  std::optional<OuterResult> outer;
  {
    // The host waits for the GPU here, indefinitely if another rank's link is down: NCCL detects that, CUDA does not.
    std::optional<ScopedWait> waiting;
    if (progress_ != nullptr) waiting.emplace(*progress_, Progress::Wait{"the device", {}, 0, {}});
    for (; !step.outcome.ready(); std::this_thread::sleep_for(std::chrono::microseconds(100))) mesh_.world.raise_errors();
    if (step.islands.outer) outer = updates_->outer_result(step.islands.outer->wait(), step.islands.outer_bytes);
  }
  StepResult result = scalars_.read(step.outcome, step.step, step.loss_factor);
  result.learning_rate = step.learning_rate;
  result.targets = step.batch.targets;
  result.local_targets = step.batch.local_targets;
  result.padding = step.batch.padding;
  result.cost_imbalance = step.batch.cost_imbalance;
  result.distances = step.distances;
  result.outer = outer;
  result.exchanged = step.islands.exchanged;
  return result;
}

void Trainer::rehearse(const Dataset& data, int64_t step) {
  read_inputs(data, step);
  program_.rehearse(batches_.microbatches(), scalars_.scalars(), step);
}

/// AGGREGATE: a robust rule over the copies of all data ranks that each owner of a shard has.
void Trainer::aggregate_gradients() {
  std::vector<RobustReducer*> reducers;
  for (const auto& stage : stages_) reducers.push_back(stage->robust_reducer());
  // Whether a data rank has drawn a sample is as private as the sample; its gradient is noise then.
  const bool absent = figures_.local_targets == 0 && !privacy_;
  distances_ = aggregate(ctx_, reducers, mesh_.step, mesh_.data->rank(), absent);
}

/// OUTER and EXCHANGE.
void Trainer::end_step() {
  updates_->end_step(
      {.step = program_.step(), .targets = figures_.targets, .sums = scalars_.sums(), .scalars = scalars_.scalars(), .counts_shard = counts_shard()});
}

std::vector<LayerGradient> Trainer::layer_gradients() {
  if (ctx_.device == Device::kCuda || has_parameter_servers(config_.training)) return {};
  return scalars_.layer_gradients();
}

void Trainer::record_activations(bool on) {
  program_.keep_eager(on);
  for (const auto& stage : stages_) stage->record_activations(on);
}

std::vector<std::pair<std::string, double>> Trainer::activation_maxima() {
  const int64_t blocks = config_.model.layers;
  const Tensor maxima = host_tensor({1 + blocks}, DType::kF64);
  std::fill_n(maxima.data<double>(), 1 + blocks, 0.0);
  for (const std::unique_ptr<TransformerStage>& stage : stages_) {
    const StageRange& range = stage->range();
    const Tensor own = to_host(ctx_, stage->activation_maxima());
    const int64_t embeddings = range.first() ? 1 : 0;
    std::copy_n(own.data<double>(), embeddings + range.blocks, maxima.data<double>() + (range.first() ? 0 : 1 + range.first_block));
  }
  // A maximum of numbers and NaN depends on their order, so NaN is counted.
  const Tensor nans = host_tensor({1 + blocks}, DType::kF64);
  for (int64_t i = 0; i <= blocks; ++i) {
    double& value = maxima.data<double>()[i];
    nans.data<double>()[i] = std::isnan(value) ? 1 : 0;
    if (std::isnan(value)) value = 0;
  }
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  for (const Tensor& each : {maxima, nans}) mesh_.step.all_reduce(host, each, ReduceOp::kMax).wait(host);
  std::vector<std::pair<std::string, double>> named;
  for (int64_t i = 0; i <= blocks; ++i)
    named.emplace_back(i == 0 ? "embedding" : block_name(i - 1),
                       nans.data<double>()[i] > 0 ? std::numeric_limits<double>::quiet_NaN() : maxima.data<double>()[i]);
  return named;
}

void Trainer::initialise() {
  for (const OwnedBox& owned : owned_boxes()) {
    const ParamSpec& spec = *owned.spec;
    switch (spec.init.kind) {
      case Init::Kind::kZeros: fill(ctx_, 0, owned.weight); break;
      case Init::Kind::kOnes: fill(ctx_, 1, owned.weight); break;
      case Init::Kind::kNormal:
        fill_normal(ctx_, random_key(static_cast<uint64_t>(config_.run.seed), "init:" + spec.name), spec.init.standard_deviation, spec.shape[1],
                    owned.box.start[0], owned.box.start[1], owned.weight.view({owned.box.extent[0], owned.box.extent[1]}));
        break;
    }
  }
  weights_replaced();
}

void Trainer::weights_changed() {
  for (const auto& stage : stages_) stage->params().mark_all_stale();
}

void Trainer::weights_replaced() {
  weights_changed();
  start_average();
  updates_->weights_replaced();
}

void Trainer::start_average() {
  for (const auto& stage : stages_)
    if (stage->optimizer() != nullptr) stage->start_average(ctx_);
}

}  // namespace trireme
