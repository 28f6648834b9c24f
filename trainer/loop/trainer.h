#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/transfer.h"
#include "parallel/comm/progress.h"
#include "parallel/crypto/private_random.h"
#include "parallel/mesh.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/islands/update_strategy.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/batches.h"
#include "trainer/loop/owned_boxes.h"
#include "trainer/loop/private_gradients.h"
#include "trainer/loop/step_program.h"
#include "trainer/loop/step_result.h"
#include "trainer/loop/step_scalars.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

struct StepTrace;  // trainer/loop/exposed.h

/// One rank's part of a training run: its pipeline stages with their parameters, gradients and optimizer, and what takes a step with them. Batches
/// reads samples, StepProgram runs the action lists, StepScalars judges the step, UpdateStrategy is what islands do beside their own steps. Every
/// method is collective.
class Trainer {
 public:
  /// `config` is resolved. `for_training` false: no gradients, no optimizer.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training);
  /// With an explicit recompute policy, one entry per block of the model, instead of the configuration's.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute);
  /// Also with a precomputed lowered_schedule(config), for many trainers of one configuration.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute,
          const LoweredSchedule& schedule);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains on the global batch of `step` (from 0), or with several islands on this island's part of it.
  StepResult step(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits = {});
  /// The two halves of step(): `start` queues the whole step, update included, without waiting for the device; `finish` waits for its results. At
  /// most one further step may be started before a step is finished.
  /// Errors of `finish`: those of StepScalars::read().
  struct StepInFlight {
    ScalarReadback outcome = {};  ///< StepScalars::read_back()
    int64_t step = 0;             ///< from 0
    double loss_factor = 0;       ///< mean loss = summed loss * loss_factor
    double learning_rate = 0;
    BatchFigures batch = {};
    std::vector<double> distances = {};  ///< StepResult::distances
    IslandFigures islands = {};
    std::optional<AppliedUpdate> applied = {};  ///< with parameter servers; then nothing is in flight
  };
  StepInFlight start(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits = {});
  StepResult finish(const StepInFlight& step);
  /// Reads the batch of `step` for StepProgram::rehearse().
  void rehearse(const Dataset& data, int64_t step);

  /// Batches::place() with another split of the same number of micro-batches, or with another rotation of the same split.
  void set_micro_batches(const MicroBatchSplit& split);
  void rotate_data(int by) { place(MicroBatchSplit(batches_.split()), by); }
  /// Batches::set_start().
  void set_data_start(DataStart start) { batches_.set_start(start); }
  /// PrivateGradients::set_source(), with security.privacy.
  void set_privacy(const crypto::PrivateRandom& random, double noise);

  /// Mean loss over `batches` global batches from the start of `data` in order (0 = all of it; the last may be short).
  struct Evaluation {
    double loss = 0;                    ///< mean over the valid tokens, nats
    double nats = 0;                    ///< sum of the losses
    int64_t tokens = 0;                 ///< valid tokens
    bool complete = true;               ///< false: ended early by `go_on`, the figures are of no use
    void add(const Evaluation& other);  ///< merges both
  };
  /// `go_on` is called before each batch and must return the same on all ranks; false ends the evaluation.
  Evaluation evaluate(
      const Dataset& data, int64_t batches, const std::function<bool()>& go_on = [] { return true; });
  /// Next-token logits [T,V] after each of the T tokens of a text, on every rank. Only tensor parallelism is supported.
  std::vector<double> logits(std::span<const int32_t> tokens) { return run_text(tokens, 0, RunMode::kLogits); }
  /// Next-token logits [V] after the last token only. `position`: number of preceding tokens of the text, whose keys and values earlier calls have
  /// left in the stage's KV cache (TransformerStage::make_cache).
  std::vector<double> next_token_logits(std::span<const int32_t> tokens, int64_t position = 0) {
    return run_text(tokens, position, RunMode::kDecode);
  }
  /// Next-token logits [V] after the last token of a text, in any layout, with observe.samples: on the ranks that have the last stage, empty on the
  /// others. Each data rank computes the same. The text has at most text_room() tokens.
  std::vector<double> continuation_logits(std::span<const int32_t> text);
  /// training.sequence_length; under sequence parallelism the largest multiple of the tensor degree in it.
  int64_t text_room() const;

  /// StepScalars::layer_gradients(). Empty on a GPU, and with parameter servers, where the last gradient of this rank is not that of a step.
  std::vector<LayerGradient> layer_gradients();
  /// For observe.activations: records the steps started from now on. On a GPU they are queued without a CUDA graph, with the same bits.
  void record_activations(bool on);
  /// The largest magnitude of the residual stream after the embedding and after each block in the last recorded step, over all tokens of the global
  /// batch: "embedding", "blocks.0", ... NaN if a value is. Waits for the device.
  std::vector<std::pair<std::string, double>> activation_maxima();
  /// Reports every action to `progress` from now on; it must outlive the trainer.
  void watch(Progress& progress);
  /// Records steps from now on, the actions in `actions` (StepProgram::record) and the rest in `trace`; both null: none.
  void trace(StepTrace* trace, TimelineRecorder* actions) {
    trace_ = trace;
    program_.record(actions);
  }

  /// Sets the initial weights: a function of (seed, name, global index) only.
  void initialise();
  std::vector<OwnedBox> owned_boxes() const { return trireme::owned_boxes(stages_, *updates_); }
  std::vector<ReducerBox> reducer_boxes() const { return trireme::reducer_boxes(stages_); }
  std::vector<ReducerMatrix> reducer_matrices() const { return trireme::reducer_matrices(stages_); }
  /// Call after modifying weights in place: marks gathered copies stale.
  void weights_changed();
  /// Call after replacing all weights: weights_changed(); the moving average and the update strategy restart from them.
  void weights_replaced();
  /// The moving average starts from the current weights.
  void start_average();

  /// True if this rank's shard enters sums over the ranks of the step: of the equal replicas of a shard, the first.
  bool counts_shard() const { return mesh_.at.replicate == 0; }
  /// True if it also enters sums over the world, and checkpoints have its weights, which are those of all islands after an outer step.
  bool represents_shard() const { return counts_shard() && mesh_.at.island == 0; }
  /// True if this rank has a part of the loss in StepResult::local_loss.
  bool counts_loss() const { return last_ != nullptr && mesh_.at.tensor == 0; }

  const Config& config() const { return config_; }
  Context& context() { return ctx_; }
  Mesh& mesh() { return mesh_; }
  const Batches& batches() const { return batches_; }
  const StepProgram& program() const { return program_; }
  StepScalars& scalars() { return scalars_; }
  const StepScalars& scalars() const { return scalars_; }
  UpdateStrategy& updates() const { return *updates_; }
  const Stages& stages() const { return stages_; }
  /// The only stage of this rank. Errors: InternalError if there are several.
  TransformerStage& stage() const;
  const std::vector<int>& stage_rank() const { return stage_rank_; }  ///< pipeline rank of each stage

 private:
  void handle_actions();
  void place(const MicroBatchSplit& split, int rotation);
  double read_inputs(const Dataset& data, int64_t step);
  void aggregate_gradients();
  void end_step();
  std::vector<double> run_text(std::span<const int32_t> tokens, int64_t position, RunMode mode);
  std::vector<double> gather_logits(const Tensor& own);
  void note(const char* what, int64_t number);

  Context& ctx_;
  Config config_;
  std::unique_ptr<Communicator> blocking_;  ///< wraps the world if parallel.overlap is false
  Mesh mesh_;
  std::vector<int> stage_rank_;
  Stages stages_;
  TransformerStage* last_ = nullptr;  ///< the last stage of the model, if on this rank
  StepProgram program_;
  StepScalars scalars_;
  Batches batches_;
  BatchFigures figures_;  ///< of what was read last
  std::unique_ptr<UpdateStrategy> updates_;
  std::unique_ptr<PrivateGradients> privacy_;  ///< with security.privacy
  std::vector<double> distances_;              ///< StepResult::distances of the last step
  Progress* progress_ = nullptr;
  StepTrace* trace_ = nullptr;
};

}  // namespace trireme
