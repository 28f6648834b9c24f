#include "trainer/loop/step_program.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/matmul.h"
#include "kernels/ops/optimizer.h"
#include "parallel/pipeline/lower.h"
#include "trainer/layout/micro_batch_split.h"

namespace trireme {
namespace {

Executor executor_of(Mesh& mesh, const Stages& stages, const std::vector<int>& stage_rank) {
  std::map<int, Stage*> local;
  auto next = stages.begin();
  for (int s = 0; s < std::ssize(stage_rank); ++s)
    if (stage_rank[static_cast<size_t>(s)] == mesh.at.pipeline) local[s] = (next++)->get();
  Executor executor(*mesh.pipeline, std::move(local), stage_rank);
  executor.drive(mesh.world);
  return executor;
}

}  // namespace

StepProgram::StepProgram(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages, const LoweredSchedule& schedule)
    : ctx_(ctx), config_(config), mesh_(mesh), stages_(stages), executor_(executor_of(mesh, stages, schedule.stage_rank)) {
  if (schedule.rerouting) {
    executor_.connect_pipelines(mesh.world, [&mesh](int pipeline, int data) {
      MeshCoordinate at = mesh.at;
      at.pipeline = pipeline;
      if (data >= 0) at.replicate = data / mesh.shape.shard, at.shard = data % mesh.shape.shard;
      return rank_of(mesh.shape, at);
    });
  }
  const int data = mesh.data->rank(), pipeline = mesh.at.pipeline;
  uncut_[std::ranges::max(even_split(config))] = {schedule.training_of(data, pipeline), schedule.evaluation_of(data, pipeline)};
  if (!schedule.text.empty()) text_ = schedule.text[static_cast<size_t>(pipeline)];
}

void StepProgram::watch(Progress& progress) {
  progress_ = &progress;
  executor_.watch(progress);
}

void StepProgram::cut(int longest, int missing) {
  const auto [lists, added] = uncut_.try_emplace(longest);
  if (added) {
    const LoweredSchedule schedule = lowered_schedule(config_, longest);
    const int data = mesh_.data->rank(), pipeline = mesh_.at.pipeline;
    lists->second = {schedule.training_of(data, pipeline), schedule.evaluation_of(data, pipeline)};
  }
  lists_ = {without_first(lists->second.training, missing), without_first(lists->second.evaluation, missing)};
}

void StepProgram::begin(RunMode mode, const std::vector<Microbatch>& microbatches, int64_t sequence, int64_t step) {
  ctx_.arena->set_phase(mode == RunMode::kTrain ? MemoryPhase::kForward : MemoryPhase::kEvaluation);
  for (const auto& stage : stages_) stage->begin(ctx_, microbatches, sequence, mode, static_cast<uint64_t>(step));
}

void StepProgram::queue(std::span<const Action> list, const std::vector<Microbatch>& batch, const Tensor& scalars) {
  for (const auto& stage : stages_) {
    scale_loss(ctx_, scalars, stage->loss_factor());
    stage->grads().begin_step(ctx_, step_);
  }
  begin(RunMode::kTrain, batch, config_.training.sequence_length, step_);
  executor_.run(ctx_, list, actions_);
}

void StepProgram::queue_step(std::span<const Action> list, const std::vector<Microbatch>& batch, const Tensor& scalars) {
  const bool gpu = ctx_.device == Device::kCuda;
  const int64_t plain_before = gpu ? cuda::product_counts(*ctx_.gpu).plain : 0;
  queue(list, batch, scalars);
  plain_products_ = gpu ? cuda::product_counts(*ctx_.gpu).plain - plain_before : 0;
}

void StepProgram::train(const std::vector<Microbatch>& batch, const Tensor& scalars, int64_t step) {
  step_ = step;
  // A warm-up of compression sums gradients by other operations.
  const bool captures = config_.kernels.cuda_graph && ctx_.device == Device::kCuda && step >= config_.training.compression.warmup_steps;
  if (captures && actions_ == nullptr && !is_eager_) return launch(batch, scalars);
  queue_step(lists_.training, batch, scalars);  // parameters are gathered: a launch leaves them marked as stale
}

/// The first two steps after a warm-up of compression run eagerly: they grow the arena and create the state of the libraries and NCCL's connections, which
/// must not happen during a capture. Every later step replays the captured third one: it uses the same buffers, and what differs between steps is in
/// device memory. What follows the updates is not captured.
void StepProgram::launch(const std::vector<Microbatch>& batch, const Tensor& scalars) {
  constexpr int kWarmUp = 2;
  if (eager_steps_ < kWarmUp) {
    ++eager_steps_;
    return queue_step(lists_.training, batch, scalars);
  }
  const auto end = std::ranges::find_if(lists_.training, follows_updates, &Action::type);
  // An evaluation since the last step may have gathered full parameters: the host does not see a launch update them, and a capture must gather.
  for (const auto& stage : stages_) stage->params().mark_all_stale();
  if (!graph_.defined()) graph_ = ctx_.gpu->capture([&] { queue_step({lists_.training.begin(), end}, batch, scalars); });
  if (progress_ != nullptr) progress_->act("launching the graph of step " + std::to_string(step_ + 1));
  ctx_.gpu->launch(graph_);
  executor_.run(ctx_, {end, lists_.training.end()});
}

void StepProgram::rehearse(const std::vector<Microbatch>& batch, const Tensor& scalars, int64_t step) {
  step_ = step;
  const auto end = std::ranges::find_if(lists_.training, ends_step, &Action::type);  // on every rank, so no rank waits for another
  queue({lists_.training.begin(), end}, batch, scalars);
}

void StepProgram::evaluate(const std::vector<Microbatch>& batch) {
  begin(RunMode::kEvaluate, batch, config_.training.sequence_length, 0);
  executor_.run(ctx_, lists_.evaluation);
}

void StepProgram::run_text(const Microbatch& text, RunMode mode, const ActionList& list) {
  begin(mode, {text}, text.tokens.numel(), 0);
  executor_.run(ctx_, list);
}

}  // namespace trireme
