#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/transfer.h"
#include "parallel/comm/progress.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"
#include "parallel/sharding/replica_contract.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

struct StepTrace;  // trainer/loop/exposed.h

/// fp16 has dynamic loss scaling; elsewhere the scale stays 1.
bool scales_loss(const TrainingConfig& training);

struct StepResult {
  double loss = 0;       ///< mean over the global batch's valid tokens, nats, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t targets = 0;                ///< valid tokens of the global batch; without any, the loss is 0 and the gradients are zero
  bool accepted = true;               ///< false: the gradient norm was not finite, weights are unchanged on every rank
  std::optional<int64_t> loss_scale;  ///< the step's, with dynamic loss scaling
  /// Rejected because the loss scale, which is smaller from here on, was too large for the gradients: a step as scaling has them now and then.
  bool overflow = false;
  std::string offender;  ///< of a rejected step: the first parameter, in the order of names, with a gradient that is not finite
};

/// A rectangle of a parameter that this rank owns, with its state: what checkpoints, tests and replica checks read and write.
struct OwnedBox {
  const ParamSpec* spec;
  Box box;
  Tensor weight, gradient;                     ///< [box.numel()] views; no gradient without an optimizer
  std::vector<ShardedOptimizer::State> state;  ///< views of the same size; none without an optimizer

  /// The weight as "weight", then the state: what is saved, compared between replicas, and loaded.
  std::vector<ShardedOptimizer::State> kept() const {
    std::vector<ShardedOptimizer::State> all{{"weight", weight}};
    all.insert(all.end(), state.begin(), state.end());
    return all;
  }
};

/// One rank's share of a training run: its stages of the model, the optimizer of what it owns, and the lists it executes. Every method is collective.
class Trainer {
 public:
  /// `config` is resolved. `for_training` false: no gradients, no optimizer.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training);
  /// With this in place of what `config` says of recomputation; an entry for each block of the model.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute);
  /// And with these as lowered_schedule(config), for many trainers of one configuration.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute,
          const LoweredSchedule& schedule);

  /// Trains on the global batch of `step` (from 0).
  StepResult step(const Dataset& data, int64_t step, double learning_rate);
  /// The two halves of step(): `start` queues the whole step, update included, without waiting for the device; `finish` waits for its figures. At most one
  /// further step may be started before a step is finished.
  struct StepInFlight {
    ScalarReadback scalars;  ///< summed loss, gradient norm, finite flag, offender; with dynamic loss scaling the next step's scale and clean steps
    double loss_factor = 0;  ///< of the sum in the mean
    double learning_rate = 0;
    int64_t targets = 0;  ///< valid tokens of the global batch
  };
  StepInFlight start(const Dataset& data, int64_t step, double learning_rate);
  StepResult finish(const StepInFlight& step);

  /// Mean loss over `batches` global batches from the start of `data` in order (0 = all of it; the last may be short).
  struct Evaluation {
    double loss = 0;                    ///< mean over the valid tokens, nats
    double nats = 0;                    ///< their sum
    int64_t tokens = 0;                 ///< valid ones
    void add(const Evaluation& other);  ///< as if both had been one
  };
  Evaluation evaluate(const Dataset& data, int64_t batches);
  /// Logits [T,V] of what follows each of T tokens of a text, on every rank, in layouts of tensor ranks alone.
  std::vector<double> logits(std::span<const int32_t> tokens) { return run_text(tokens, 0, RunMode::kLogits); }
  /// Of the last one alone, [V]. `position`: tokens of the text before these, whose keys and values earlier calls have left in the stage's cache
  /// (TransformerStage::make_cache).
  std::vector<double> next_token_logits(std::span<const int32_t> tokens, int64_t position = 0) {
    return run_text(tokens, position, RunMode::kDecode);
  }

  /// Initial weights: a function of (seed, name, global index) only.
  void initialise();
  std::vector<OwnedBox> owned_boxes() const;
  /// After weights were written through owned_boxes.
  void weights_changed();
  /// The same where they are all new: their moving average begins with them too.
  void weights_replaced();

  int64_t accepted_steps() const { return accepted_steps_; }
  void set_accepted_steps(int64_t steps);
  /// After the finished steps.
  LossScale loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& loss_scale);
  const Config& config() const { return config_; }
  /// From now on `progress`, which outlives this, is told of every action.
  void watch(Progress& progress);
  /// From now on steps are noted in `trace`; none where it is null. On a device that computes when it is told to, not on a GPU.
  void trace(StepTrace* trace) { trace_ = trace; }
  /// What this run's replicas have in common. Every configuration there is keeps them equal; set on all ranks alike.
  ReplicaContract replica_contract() const { return replica_contract_; }
  void set_replica_contract(ReplicaContract contract) { replica_contract_ = contract; }
  /// By the contract: this rank's shard is part of sums over the world, and of what is saved.
  bool counts_shard() const { return counts_own_shard(replica_contract_, mesh_.at.replicate); }
  Mesh& mesh() { return mesh_; }
  Context& context() { return ctx_; }
  const ActionList& training_list() const { return training_list_; }
  /// By stage, ascending: one, or with virtual stages several.
  const std::vector<std::unique_ptr<TransformerStage>>& stages() const { return stages_; }
  /// The only one, in runs without virtual stages.
  TransformerStage& stage() const;
  const std::vector<int>& stage_rank() const { return stage_rank_; }  ///< pipeline rank of each stage

 private:
  /// Fills batch_ and counts the unmasked targets of the whole global batch. `sample_of`: place in the global batch -> sample of the data set.
  int64_t read_batch(const Dataset& data, const std::function<int64_t(int64_t)>& sample_of);
  std::vector<double> run_text(std::span<const int32_t> tokens, int64_t position, RunMode mode);
  void begin(RunMode mode, std::vector<Microbatch> microbatches, int64_t sequence, int64_t step);
  void make_optimizers();
  void add_owned_boxes(size_t stage, std::vector<OwnedBox>& boxes) const;
  void queue_step(int64_t step);
  void norm();
  void launch_graph(int64_t step);
  std::string offender_name(int64_t index);
  void note(const char* what, int64_t number);

  Context& ctx_;
  Config config_;
  std::unique_ptr<Communicator> blocking_;  ///< the world, where nothing is to overlap
  Mesh mesh_;
  ReplicaContract replica_contract_ = ReplicaContract::kEqual;
  Precision precision_;
  int microbatches_;
  std::vector<int> stage_rank_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;
  TransformerStage* last_ = nullptr;  ///< the last stage of the model, where it is here
  std::unique_ptr<Executor> executor_;
  Progress* progress_ = nullptr;
  StepTrace* trace_ = nullptr;
  ActionList training_list_, evaluation_list_;
  Tensor sums_, norm_, scalars_;             ///< f64: {gradient squares, loss}, [1], [kStepScalars]
  std::vector<Microbatch> batch_;            ///< of this data rank
  std::vector<Tensor> gradients_;            ///< owned_gradients
  std::vector<std::string> gradient_names_;  ///< theirs
  Tensor offender_;                          ///< [1] f64: place among them of a rejected step's first that is not finite
  cuda::Gpu::Graph graph_;                   ///< of a step
  int eager_steps_ = 0;                      ///< before it was captured
  int64_t accepted_steps_ = 0;               ///< of finished steps
  AdamW hyper_;
  LossScaling scaling_;
  LossScale loss_scale_;  ///< after finished steps
};

}  // namespace trireme
