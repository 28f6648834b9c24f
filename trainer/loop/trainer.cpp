#include "trainer/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/cuda/matmul.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/blocking.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/exposed.h"
#include "trainer/loop/recompute.h"
#include "trainer/machine/collectively.h"
#include "trainer/model/declare.h"

namespace trireme {

namespace {

/// Scalars that the host reads after a step. The last two only with dynamic loss scaling.
struct Readback {
  enum Place : size_t {
    kLossSum,
    kGradNorm,
    kAcceptedFlag,
    kOffender,
    kOutlierCount,
    kLocalLoss,
    kLocalSquares,
    kStandsOut,
    kNextLossScale,
    kNextCleanSteps,
    kCount
  };
};

}  // namespace

bool scales_loss(const TrainingConfig& training) { return training.precision == "fp16"; }

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
      precision_(precision_of(config.training)),
      split_(even_split(config)),
      layer_gradients_(config.model) {
  stage_rank_ = schedule.stage_rank;
  use(schedule);
  if (!schedule.text.empty()) text_list_ = schedule.text[static_cast<size_t>(mesh_.at.pipeline)];
  StageOptions options{.sequence_parallel = config.parallel.sequence_parallel,
                       .policy = zero_policy(config.parallel),
                       .precision = precision_,
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
  std::map<int, Stage*> local;
  for (int s = 0; s < static_cast<int>(stage_rank_.size()); ++s) {
    if (stage_rank_[static_cast<size_t>(s)] != mesh_.at.pipeline) continue;
    const StageRange range = stage_range(*config.parallel.layers_per_stage, s);
    TransformerStage* const first = range.last() && s > 0 && stage_rank_.front() == mesh_.at.pipeline ? stages_.front().get() : nullptr;
    stages_.push_back(std::make_unique<TransformerStage>(ctx, config.model, mesh_, range, options, first));
    local[s] = stages_.back().get();
    if (range.last()) last_ = stages_.back().get();
  }
  executor_ = std::make_unique<Executor>(*mesh_.pipeline, local, stage_rank_);
  if (rerouting_) connect_pipelines();
  executor_->drive(mesh_.world);
  handle_actions();
  sums_ = Tensor::zeros(ctx, {kStepSums}, DType::kF64, MemoryCategory::kWorkspace);
  norm_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  local_sums_ = Tensor::zeros(ctx, {kStepSums}, DType::kF64, MemoryCategory::kWorkspace);
  scalars_ = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  fill(ctx, std::numeric_limits<double>::infinity(), scalars_.flat(kNormLimit, kStepScalars - kNormLimit));
  rotate_data(0);
  if (for_training) make_optimizers();
}

/// What the actions do that concern all stages of this rank.
void Trainer::handle_actions() {
  executor_->on(ActionType::kClipSamples, [this](Context&, const Action& action) { start_clip(action.microbatch); });
  executor_->on(ActionType::kWaitClip, [this](Context&, const Action& action) { wait_clip(action.microbatch); });
  executor_->on(ActionType::kAggregate, [this](Context&, const Action&) { aggregate_gradients(); });
  executor_->on(ActionType::kNoise, [this](Context&, const Action&) { add_noise(); });
  executor_->on(ActionType::kNorm, [this](Context&, const Action&) { norm(); });
  executor_->on(ActionType::kOuter, [this](Context&, const Action&) { take_outer_steps(); });
  executor_->on(ActionType::kExchange, [this](Context&, const Action&) { exchange_with_islands(); });
}

void Trainer::use(const LoweredSchedule& schedule) {
  rerouting_ = schedule.rerouting;
  longest_training_ = schedule.training_of(mesh_.data->rank(), mesh_.at.pipeline);
  longest_evaluation_ = schedule.evaluation_of(mesh_.data->rank(), mesh_.at.pipeline);
}

void Trainer::connect_pipelines() {
  executor_->connect_pipelines(mesh_.world, [this](int pipeline, int data) {
    MeshCoordinate at = mesh_.at;
    at.pipeline = pipeline;
    if (data >= 0) at.replicate = data / mesh_.shape.shard, at.shard = data % mesh_.shape.shard;
    return rank_of(mesh_.shape, at);
  });
}

void Trainer::make_optimizers() {
  offender_ = Tensor::zeros(ctx_, {1}, DType::kF64, MemoryCategory::kWorkspace);
  std::vector<NamedGradient> owned;
  for (const auto& stage : stages_)
    for (NamedGradient& one : owned_gradients(stage->params().units(), stage->grads())) owned.push_back(std::move(one));
  std::ranges::sort(owned, {}, &NamedGradient::name);
  for (const NamedGradient& one : owned) {
    gradient_names_.push_back(one.name);
    gradients_.push_back(one.gradient);
  }
  const OptimizerConfig& optimizer = config_.training.optimizer;
  const Optimizer kind = optimizer.name.value();
  hyper_ = {optimizer.beta1, optimizer.beta2.value_or(traits_of(kind).default_beta2), optimizer.epsilon, optimizer.weight_decay};
  const CompressionConfig& compression = config_.training.compression;
  if (compression.method == CompressionMethod::kOneBitAdam) hyper_.second_moment_steps = static_cast<double>(compression.warmup_steps);
  if (adds_noise_on_each_rank(config_)) {
    for (const auto& stage : stages_)
      stage->grads().before_reduce([this, of = stage.get()](Context&, int unit, const Tensor& full) { add_noise_of_rank(*of, unit, full); });
  }
  const OptimizerOptions options{.kind = kind,
                                 .hyper = hyper_,
                                 .momentum = optimizer.momentum,
                                 .scale = optimizer.update_scale.value(),
                                 .average_decay = config_.training.ema.decay};
  for (const auto& stage : stages_) stage->make_optimizer(ctx_, options, precision_, scalars_);
  rounds_ = rounds_of(config_.training, config_.training.steps.value_or(0));
  const LocalConfig& local = config_.training.local;
  if (local.steps || averages_elastically(config_.training)) shared_ = std::make_unique<SharedShards>(ctx_, stages_, precision_.master);
  if (local.steps) local_ = std::make_unique<LocalUpdates>(ctx_, mesh_, stages_, *shared_, local, precision_.master);
  if (shares_weights(config_.training)) {
    if (ctx_.device != Device::kMeta) hogwild_ = std::make_unique<Hogwild>(*mesh_.islands, stages_, precision_.master, hyper_);
  } else if (is_asynchronous(config_.training)) {
    make_parameter_server();
  }
  const LossScaleConfig& scale = config_.training.loss_scale;
  if (scales_loss(config_.training)) {
    scaling_ = {scale.growth_interval, static_cast<double>(scale.minimum), static_cast<double>(scale.maximum)};
    loss_scale_.scale = scale.initial;
  }
  set_loss_scale(loss_scale_);
}

TransformerStage& Trainer::stage() const {
  TRIREME_CHECK(stages_.size() == 1, stages_.size(), " stages on this rank");
  return *stages_.front();
}

void Trainer::weights_changed() {
  for (const auto& stage : stages_)
    for (size_t unit = 0; unit < stage->params().units().size(); ++unit) stage->params().mark_stale(static_cast<int>(unit));
}

void Trainer::watch(Progress& progress) {
  progress_ = &progress;
  executor_->watch(progress);
}

void Trainer::note(const char* what, int64_t number) {
  if (progress_ != nullptr) progress_->act(what + std::to_string(number));
}

StepResult Trainer::step(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits) {
  return finish(start(data, step, learning_rate, limits));
}

void Trainer::rehearse(const Dataset& data, int64_t step) {
  write_inputs(data, step);
  const auto end = std::ranges::find_if(training_list_, ends_step, &Action::type);  // on every rank, so no rank waits for another
  queue_list({training_list_.begin(), end}, step);
}

Trainer::StepInFlight Trainer::start(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits) {
  if (has_parameter_servers() && ctx_.device != Device::kMeta) return start_asynchronous(data, step, learning_rate);
  const double factor = write_inputs(data, step);
  write_scalar(ctx_, learning_rate, scalars_.flat(kLearningRate, 1));
  write_scalar(ctx_, limits.grad_norm, scalars_.flat(kNormLimit, 1));
  write_scalar(ctx_, limits.rank_loss * static_cast<double>(std::max<int64_t>(local_targets_, 1)), scalars_.flat(kRankLossLimit, 1));
  write_scalar(ctx_, limits.reject_outliers ? 0 : std::numeric_limits<double>::infinity(), scalars_.flat(kOutlierLimit, 1));
  const double loss_limit = limits.loss * static_cast<double>(std::max<int64_t>(targets_, 1));
  write_scalar(ctx_, limits.finite_loss ? std::min(loss_limit, std::numeric_limits<double>::max()) : loss_limit, scalars_.flat(kLossLimit, 1));
  // A warm-up sums gradients by other operations.
  const bool captures = config_.kernels.cuda_graph && ctx_.device == Device::kCuda && step >= config_.training.compression.warmup_steps;
  islands_agree_ = rounds_.ends_after(step + 1);
  if (captures && actions_ == nullptr && !records_activations_) {
    launch_graph(step);
  } else {
    queue_step(training_list_, step);  // parameters are gathered: a launch leaves them marked as stale
  }
  std::vector<Tensor> results(scales_loss(config_.training) ? Readback::kCount : Readback::kNextLossScale);
  results[Readback::kLossSum] = sums_.flat(kLosses, 1);
  results[Readback::kGradNorm] = norm_;
  results[Readback::kAcceptedFlag] = scalars_.flat(kAccepted, 1);
  results[Readback::kOffender] = offender_;
  results[Readback::kOutlierCount] = sums_.flat(kOutliers, 1);
  results[Readback::kLocalLoss] = local_sums_.flat(kLosses, 1);
  results[Readback::kLocalSquares] = local_sums_.flat(kSquares, 1);
  results[Readback::kStandsOut] = local_sums_.flat(kOutliers, 1);
  if (scales_loss(config_.training)) {
    results[Readback::kNextLossScale] = scalars_.flat(kLossScale, 1);
    results[Readback::kNextCleanSteps] = scalars_.flat(kCleanSteps, 1);
  }
  StepInFlight started{ScalarReadback(ctx_, results), step, factor, learning_rate, targets_, local_targets_, padding_, cost_imbalance_, distances_};
  started.exchanged = std::exchange(exchanged_, {});
  started.outer = std::exchange(outer_, {});
  if (started.outer) started.outer_bytes = local_->sent_bytes();
  return started;
}

/// OUTER: whether anything follows this step is the matter of the round.
void Trainer::take_outer_steps() {
  const bool rehearses = ctx_.device == Device::kMeta;  // a forecast of memory runs few steps
  if (rehearses || rounds_.has_outer_step(step_ + 1)) note("outer step after step ", step_ + 1);
  ctx_.arena->set_phase(MemoryPhase::kOptimizer);
  if (rehearses) local_->synchronise_all(ctx_, counts_shard());
  if (rehearses || local_->after_step(ctx_, rounds_, step_ + 1, counts_shard())) outer_.emplace(ctx_, local_->figures());
}

void Trainer::begin(RunMode mode, std::vector<Microbatch> microbatches, int64_t sequence, int64_t step) {
  ctx_.arena->set_phase(mode == RunMode::kTrain ? MemoryPhase::kForward : MemoryPhase::kEvaluation);
  for (const auto& stage : stages_) stage->begin(ctx_, microbatches, sequence, mode, static_cast<uint64_t>(step));
}

/// Queues everything between the inputs of a step and its results; all of it runs on the device.
void Trainer::queue_step(std::span<const Action> list, int64_t step) {
  const bool gpu = ctx_.device == Device::kCuda;
  const int64_t plain_before = gpu ? cuda::product_counts(*ctx_.gpu).plain : 0;
  queue_list(list, step);
  plain_products_ = gpu ? cuda::product_counts(*ctx_.gpu).plain - plain_before : 0;
}

void Trainer::queue_list(std::span<const Action> list, int64_t step) {
  for (const auto& stage : stages_) {
    scale_loss(ctx_, scalars_, stage->loss_scale());
    stage->grads().begin_step(ctx_, step);
  }
  begin(RunMode::kTrain, batch_, config_.training.sequence_length, step);
  executor_->run(ctx_, list, actions_);
}

/// AGGREGATE: a robust rule over the copies of all data ranks that each owner of a shard has.
void Trainer::aggregate_gradients() {
  std::vector<RobustReducer*> reducers;
  for (const auto& stage : stages_) reducers.push_back(stage->robust_reducer());
  // Whether a data rank has drawn a sample is as private as the sample; its gradient is noise then.
  const bool absent = local_targets_ == 0 && !is_private(config_.security);
  distances_ = aggregate(ctx_, reducers, mesh_.step, mesh_.data->rank(), absent);
}

/// NORM: one all-reduce for squared gradient norm, loss and the number of ranks that stand out. Each gradient element and each token's loss is added by
/// exactly one rank.
void Trainer::norm() {
  fill(ctx_, 0, sums_);
  NamedSquares squares;
  NamedSquares* const each = ctx_.device == Device::kCuda ? nullptr : &squares;
  for (const auto& stage : stages_)
    if (counts_shard()) add_gradient_squares(ctx_, stage->params().units(), stage->grads(), sums_.flat(kSquares, 1), each);
  if (each != nullptr) layer_gradients_.set(std::move(squares));
  if (counts_loss()) copy(ctx_, last_->loss_sum(), sums_.flat(kLosses, 1));
  mark_outlier(ctx_, scalars_, sums_);
  copy(ctx_, sums_, local_sums_);
  mesh_.step.all_reduce(ctx_, sums_, ReduceOp::kSum).wait(ctx_);

  finalize_step_scalars(ctx_, hyper_, scaling_, sums_, config_.training.gradient_clip, norm_, scalars_);
  first_non_finite(ctx_, gradients_, scalars_, offender_);
}

/// The first two steps after a warm-up of compression run eagerly: they grow the arena and create the state of the libraries and NCCL's connections, which
/// must not happen during a capture. Every later step replays the captured third one: it uses the same buffers, and what differs between steps is in
/// device memory. What follows the updates is not captured.
void Trainer::launch_graph(int64_t step) {
  constexpr int kWarmUp = 2;
  if (eager_steps_ < kWarmUp) {
    ++eager_steps_;
    return queue_step(training_list_, step);
  }
  const auto end = std::ranges::find_if(training_list_, follows_updates, &Action::type);
  // An evaluation since the last step may have gathered full parameters: the host does not see a launch update them, and a capture must gather.
  weights_changed();
  if (!graph_.defined()) graph_ = ctx_.gpu->capture([&] { queue_step({training_list_.begin(), end}, step); });
  note("launching the graph of step ", step + 1);
  ctx_.gpu->launch(graph_);
  executor_->run(ctx_, {end, training_list_.end()});
}

StepResult Trainer::finish(const StepInFlight& step) {
  if (step.applied) return finish_asynchronous(step);
  // The host waits for the GPU here, indefinitely if another rank's link is down: NCCL detects that, CUDA does not.
  std::optional<ScopedWait> waiting;
  if (progress_ != nullptr) waiting.emplace(*progress_, Progress::Wait{"the device", {}, 0, {}});
  for (; !step.scalars.ready(); std::this_thread::sleep_for(std::chrono::microseconds(100))) mesh_.world.raise_errors();
  const std::vector<double> values = step.scalars.wait();
  const std::vector<double> outer = step.outer ? step.outer->wait() : std::vector<double>();
  waiting.reset();
  if (ctx_.device != Device::kMeta) {
    std::vector<double> shared = {values[Readback::kLossSum], values[Readback::kGradNorm], values[Readback::kAcceptedFlag],
                                  values[Readback::kOutlierCount]};
    if (scales_loss(config_.training)) shared.insert(shared.end(), {values[Readback::kNextLossScale], values[Readback::kNextCleanSteps]});
    try {
      check_same_result(mesh_.step, concat("step ", step.step + 1), shared);
    } catch (const AgreedError& error) {
      if (mesh_.shape.islands == 1) throw;
      throw InternalError(concat("island ", mesh_.at.island, ": ", error.what()));  // the other islands do not know of it, so the job is aborted
    }
  }
  StepResult result;
  result.loss = values[Readback::kLossSum] * step.loss_factor;
  result.grad_norm = values[Readback::kGradNorm];
  result.learning_rate = step.learning_rate;
  result.targets = step.targets;
  result.padding = step.padding;
  result.cost_imbalance = step.cost_imbalance;
  result.distances = step.distances;
  result.local_loss = values[Readback::kLocalLoss];
  result.local_squares = values[Readback::kLocalSquares];
  result.local_targets = step.local_targets;
  result.stands_out = values[Readback::kStandsOut] != 0;
  result.outliers = static_cast<int64_t>(values[Readback::kOutlierCount]);
  if (step.outer) result.outer = local_->result(outer, step.outer_bytes);
  result.exchanged = step.exchanged;
  result.accepted = ctx_.device == Device::kMeta || values[Readback::kAcceptedFlag] != 0;
  if (result.accepted) {
    ++accepted_steps_;
  } else {
    result.offender = offender_name(static_cast<int64_t>(values[Readback::kOffender]));
    result.over_limit = std::isfinite(result.grad_norm);
  }
  if (scales_loss(config_.training) && ctx_.device != Device::kMeta) {
    used_scale_ = static_cast<double>(loss_scale_.scale);
    const LossScale next{static_cast<int64_t>(values[Readback::kNextLossScale]), static_cast<int64_t>(values[Readback::kNextCleanSteps])};
    result.loss_scale = std::exchange(loss_scale_, next).scale;
    // The loss is not scaled: if it is not finite itself, a smaller scale does not help.
    result.overflow = !result.accepted && std::isfinite(result.loss) && loss_scale_.scale < *result.loss_scale;
  }
  return result;
}

std::vector<LayerGradient> Trainer::layer_gradients() {
  if (ctx_.device == Device::kCuda || has_parameter_servers()) return {};
  return layer_gradients_.gather(mesh_.step, used_scale_);
}

void Trainer::record_activations(bool on) {
  records_activations_ = on;
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
    named.emplace_back(i == 0 ? "embedding" : concat("blocks.", i - 1),
                       nans.data<double>()[i] > 0 ? std::numeric_limits<double>::quiet_NaN() : maxima.data<double>()[i]);
  return named;
}

void Trainer::set_accepted_steps(int64_t steps) {
  accepted_steps_ = steps;
  fill(ctx_, static_cast<double>(steps), scalars_.flat(kAcceptedSteps, 1));
}

void Trainer::set_loss_scale(const LossScale& loss_scale) {
  loss_scale_ = loss_scale;
  fill(ctx_, static_cast<double>(loss_scale.scale), scalars_.flat(kLossScale, 1));
  fill(ctx_, static_cast<double>(loss_scale.clean_steps), scalars_.flat(kCleanSteps, 1));
}

std::string Trainer::offender_name(int64_t index) {
  std::string first;
  for (const std::string& name : all_gather_strings(mesh_.step, index < 0 ? "" : gradient_names_[static_cast<size_t>(index)])) {
    if (!name.empty() && (first.empty() || name < first)) first = name;
  }
  return first;
}

std::vector<OwnedBox> Trainer::owned_boxes() const {
  std::vector<OwnedBox> boxes;
  for (size_t s = 0; s < stages_.size(); ++s) add_owned_boxes(s, boxes);
  return boxes;
}

void Trainer::add_owned_boxes(size_t s, std::vector<OwnedBox>& boxes) const {
  const ParamStore& params = stages_[s]->params();
  for (size_t u = 0; u < params.units().size(); ++u) {
    const int unit = static_cast<int>(u);
    for (const Unit::Segment& segment : params.units()[u]->owned_segments()) {
      for (const BoxRange& range : boxes_of(*segment.spec, segment.param_begin, segment.param_begin + segment.count)) {
        const Unit::Segment part{segment.spec, segment.flat_begin + range.offset - segment.param_begin, range.offset, range.box.numel()};
        const auto slice = [&](const Tensor& shard_tensor) { return params.units()[u]->slice(shard_tensor, part); };
        OwnedBox box{segment.spec, range.box, slice(params.master(unit)), {}, {}, {}};
        if (const ShardedOptimizer* const optimizer = stages_[s]->optimizer(); optimizer != nullptr) {
          box.state = optimizer->state_of(unit, part);
          if (local_) box.state.push_back({kOuterMomentumName, slice(local_->momentum(s, u))});
          if (keeps_island_weights()) box.shared = slice(shared_->of(s, u));
          box.gradient = slice(stages_[s]->grads().shard(unit));
        }
        boxes.push_back(std::move(box));
      }
    }
  }
}

std::vector<ReducerBox> Trainer::reducer_boxes() const {
  std::vector<ReducerBox> boxes;
  for (const std::unique_ptr<TransformerStage>& stage : stages_) {
    const std::vector<Unit*>& units = stage->params().units();
    for (size_t u = 0; u < units.size(); ++u) {
      for (const Reducer::State& state : stage->grads().reducer().state(static_cast<int>(u))) {
        if (state.spec != nullptr) continue;
        for (const Unit::Segment& segment : units[u]->segments(state.begin, state.begin + state.tensor.numel())) {
          const int64_t first = segment.flat_begin - state.begin - segment.param_begin;  // of the parameter, in the state
          for (const BoxRange& range : boxes_of(*segment.spec, segment.param_begin, segment.param_begin + segment.count))
            boxes.push_back({segment.spec, range.box, state.name, state.tensor.flat(first + range.offset, range.box.numel()), state.worker});
        }
      }
    }
  }
  return boxes;
}

std::vector<ReducerMatrix> Trainer::reducer_matrices() const {
  std::vector<ReducerMatrix> matrices;
  for (const std::unique_ptr<TransformerStage>& stage : stages_)
    for (size_t u = 0; u < stage->params().units().size(); ++u)
      for (const Reducer::State& state : stage->grads().reducer().state(static_cast<int>(u)))
        if (state.spec != nullptr) matrices.push_back({state.spec, state.name, state.tensor});
  return matrices;
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

void Trainer::weights_replaced() {
  weights_changed();
  start_average();
  if (shared_) shared_->set(ctx_);
  start_local_updates();
}

void Trainer::start_average() {
  for (const auto& stage : stages_)
    if (stage->optimizer() != nullptr) stage->start_average(ctx_);
}

void Trainer::start_local_updates() {
  if (local_) local_->start_run(ctx_);
  start_round();
}

void Trainer::start_round() {
  if (shared_ && !keeps_island_weights()) shared_->set(ctx_);
  islands_agree_ = true;
}

void Trainer::take_shared_weights() {
  if (keeps_island_weights()) shared_->take(ctx_);
}

}  // namespace trireme
