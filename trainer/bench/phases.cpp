#include "trainer/bench/phases.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/ops/transfer.h"
#include "trainer/bench/measure.h"

namespace trireme::bench {
namespace {

enum Phase : size_t {
  kForwardEmbedding,
  kForwardBlocks,
  kForwardHead,
  kBackwardEmbedding,
  kBackwardBlocks,
  kBackwardHead,
  kParameters,
  kGradients,
  kWaiting,
  kRest,
  kPhases
};
constexpr std::array<const char*, kPhases> kNames{"forward, embedding", "forward, blocks",    "forward, head",        "backward, embedding",
                                                  "backward, blocks",   "backward, head",     "gathering parameters", "reducing gradients",
                                                  "pipeline and idle",  "update and the rest"};

Phase phase_of(const Action& action, bool first, bool last, int parts) {
  if (action.type == ActionType::kUnshard || action.type == ActionType::kReshard) return kParameters;
  if (!is_compute(action.type)) return kGradients;
  const bool forward = action.type == ActionType::kForward;
  if (first && action.part == 0) return forward ? kForwardEmbedding : kBackwardEmbedding;
  if (last && action.part == parts - 1) return forward ? kForwardHead : kBackwardHead;
  return forward ? kForwardBlocks : kBackwardBlocks;
}

using PhaseSeconds = std::array<double, kPhases>;

/// This rank's micro-batches of a step, with random tokens.
std::vector<Microbatch> random_microbatches(Context& ctx, Trainer& trainer, const Config& config) {
  const TrainingConfig& training = config.training;
  const int64_t rows = training.micro_batch_size * training.sequence_length;
  const MicroBatchSplit& split = trainer.batches().split();
  const auto mine = split.begin() + trainer.batches().data_rank();
  std::vector<Microbatch> microbatches;
  for (int64_t k = std::reduce(split.begin(), mine), end = k + *mine; k < end; ++k) {
    const int64_t first = k * training.micro_batch_size;
    const auto key = static_cast<uint64_t>(first);
    const auto draw = [&](uint64_t which) { return random_tokens(ctx, rows, *config.model.vocab_size, which); };
    microbatches.push_back({draw(2 * key), draw(2 * key + 1), first});
  }
  return microbatches;
}

}  // namespace

Timeline run_forward_backward(Context& ctx, Trainer& trainer, const Config& config) {
  Mesh& mesh = trainer.mesh();
  const std::vector<Microbatch> microbatches = random_microbatches(ctx, trainer, config);
  std::map<int, Stage*> stages;
  for (const auto& stage : trainer.stages()) stages[stage->range().stage] = stage.get();
  Executor executor(*mesh.pipeline, stages, trainer.stage_rank());
  mesh.world.barrier();
  const TrainingConfig& training = config.training;
  const auto tokens = static_cast<double>(training.global_batch_size * training.sequence_length);
  for (const auto& stage : trainer.stages()) {
    stage->grads().begin_step(ctx, 0);
    stage->begin(ctx, microbatches, training.sequence_length, RunMode::kTrain, 0);
    write_scalar(ctx, 1.0 / tokens, stage->loss_factor());
  }
  ActionList list = trainer.program().training_list();
  std::erase_if(list, [](const Action& action) { return makes_step(action.type); });
  DeviceClock clock(ctx, DeviceClock::Host::now());
  TimelineRecorder recorder(clock);
  executor.run(ctx, list, &recorder);
  return recorder.take();
}

namespace {

/// Seconds of all phases except kRest.
PhaseSeconds trace(Context& ctx, Trainer& trainer, const Config& config) {
  std::map<int, const TransformerStage*> stages;
  for (const auto& stage : trainer.stages()) stages[stage->range().stage] = stage.get();
  PhaseSeconds seconds{};
  double end = 0;
  for (const TimelineEvent& event : run_forward_backward(ctx, trainer, config)) {
    end = std::max(end, event.end);
    if (is_transfer(event.action.type)) continue;  // overlaps with compute
    const TransformerStage& stage = *stages.at(event.action.stage);
    seconds[phase_of(event.action, stage.range().first(), stage.range().last(), stage.parts())] += event.end - event.begin;
  }
  for (size_t p = 0; p < kWaiting; ++p) end -= seconds[p];
  seconds[kWaiting] = end;
  return seconds;
}

}  // namespace

nlohmann::ordered_json phases_of(Context& ctx, Trainer& trainer, const Config& config, double step_seconds) {
  constexpr int kTraced = 3;
  std::array<std::vector<double>, kPhases> traced;
  for (int i = 0; i < kTraced; ++i) {
    const PhaseSeconds seconds = trace(ctx, trainer, config);
    for (size_t p = 0; p < kRest; ++p) traced[p].push_back(seconds[p]);
  }
  Communicator& world = trainer.mesh().world;
  double rest = step_seconds;
  nlohmann::ordered_json phases = nlohmann::ordered_json::array();
  for (size_t p = 0; p < kPhases; ++p) {
    const double mine = p == kRest ? std::max(0.0, rest) : quantile_of(traced[p], 0.5);
    const double mean = all_reduce_scalar(world, mine, ReduceOp::kSum) / world.size();
    rest -= mean;
    phases.push_back({{"phase", kNames[p]}, {"seconds", mean}, {"share", mean / step_seconds}});
  }
  return phases;
}

}  // namespace trireme::bench
