#pragma once
#include <exception>
#include <functional>
#include <limits>
#include <map>
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
#include "parallel/pipeline/executor.h"
#include "parallel/sharding/replica_contract.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/islands/hogwild.h"
#include "trainer/islands/local_updates.h"
#include "trainer/islands/parameter_server.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/loop/layer_gradients.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

struct StepTrace;  // trainer/loop/exposed.h

/// True for fp16, which has dynamic loss scaling; in other precisions the scale stays 1.
bool scales_loss(const TrainingConfig& training);

/// Largest values with which a step is accepted.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       ///< mean over the global batch's valid tokens, nats
  double grad_norm = std::numeric_limits<double>::infinity();  ///< before clipping
  /// True: a step whose loss is not finite is rejected, too. One whose gradient norm is not finite always is.
  bool finite_loss = false;
  /// Above it this rank stands out: mean of StepResult::local_loss over the rank's valid tokens, nats. May differ between ranks.
  double rank_loss = std::numeric_limits<double>::infinity();
  bool reject_outliers = false;  ///< true: a step in which a rank stands out is rejected, too
  bool operator==(const StepLimits&) const = default;
};

/// With several islands, of the step of this rank's island.
struct StepResult {
  double loss = 0;       ///< mean over the global batch's valid tokens, nats, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t targets = 0;                ///< valid tokens of the global batch; if there are none, loss and gradients are 0
  bool accepted = true;               ///< false: the gradient norm was not finite or StepLimits rejected it, weights are unchanged on every rank
  std::optional<int64_t> loss_scale;  ///< of this step; only with dynamic loss scaling
  /// True if rejected because the loss scale was too large for the gradients; it is lower from here on. Expected now and then with loss scaling.
  bool overflow = false;
  std::string offender;     ///< rejected steps: the first parameter, by name, with a non-finite gradient
  bool over_limit = false;  ///< true if rejected by StepLimits, with a finite gradient
  /// This rank's, before the sum over the ranks: summed loss of its samples if it has the last stage, else 0, and squared norm of the gradients that
  /// it owns and counts, with the loss scale.
  double local_loss = 0, local_squares = 0;
  /// Valid tokens of the samples of this rank's data coordinate; with resilience.reroute of the samples that this rank computes.
  int64_t local_targets = 0;
  bool stands_out = false;    ///< this rank, by StepLimits
  int64_t outliers = 0;       ///< number of ranks that stand out
  int64_t padding = 0;        ///< positions of the global batch without a token (Dataset::padding), which data.packing leaves
  double cost_imbalance = 0;  ///< with data.balance: (max - mean) / mean of the cost of the data ranks' sequences
  /// With security.aggregation: by data rank, the distance of its gradient from those of the others (aggregate() in parallel/sharding/robust_reducer.h).
  std::vector<double> distances = {};
  std::optional<OuterResult> outer = {};  ///< if an outer step followed, with training.local
  /// With parameter servers, the update: loss and grad_norm are those of its gradients, and this rank has no part in them.
  std::optional<AppliedUpdate> applied = {};
  std::optional<Arrivals> exchanged = {};  ///< with elastic averaging: the exchanges with the centre that have become known
  /// What servers of training.asynchronous have applied; null without them.
  const Arrivals* arrivals() const { return applied ? &*applied : exchanged ? &*exchanged : nullptr; }
};

/// A rectangle of a parameter that this rank owns, with its optimizer state. Checkpoints, tests and replica checks read and write it.
struct OwnedBox {
  const ParamSpec* spec;
  Box box;
  Tensor weight, gradient;                     ///< [box.numel()] views; no gradient without an optimizer
  Tensor shared = {};                          ///< likewise: the weights that all islands share, if `weight` is this island's own
  std::vector<ShardedOptimizer::State> state;  ///< views of the same size; none without an optimizer

  /// The weight, named "weight", then the state: everything that is saved, loaded and compared between replicas. Where islands have weights of their own,
  /// "weight" is the shared one.
  std::vector<ShardedOptimizer::State> kept() const {
    std::vector<ShardedOptimizer::State> all{{"weight", shared.defined() ? shared : weight}};
    if (shared.defined()) all.push_back({kIslandWeightName, weight});
    all.insert(all.end(), state.begin(), state.end());
    return all;
  }
};

/// A rectangle of a parameter with what this rank's Reducer keeps for it between steps.
struct ReducerBox {
  const ParamSpec* spec;
  Box box;
  std::string name;  ///< Reducer::State::name
  Tensor values;     ///< [box.numel()] view
  int worker = -1;   ///< Reducer::State::worker
};

/// A matrix of its own that this rank's Reducer keeps for a parameter between steps, equal on all data ranks.
struct ReducerMatrix {
  const ParamSpec* spec;
  std::string name;  ///< Reducer::State::name
  Tensor values;     ///< [rows, columns] view
};

/// One rank's part of a training run: its pipeline stages, the optimizer of the shards it owns, and its action lists. Every method is collective.
class Trainer {
 public:
  /// `config` is resolved. `for_training` false: no gradients, no optimizer.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training);
  /// With an explicit recompute policy, one entry per block of the model, instead of the configuration's.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute);
  /// Also with a precomputed lowered_schedule(config), for many trainers of one configuration.
  Trainer(Context& ctx, Communicator& world, const Config& config, bool for_training, const std::vector<Recompute>& recompute,
          const LoweredSchedule& schedule);

  /// Sets where the training data begin: {0, 0} unless a resumed run has changed them. Set the same value on all ranks.
  void set_data_start(DataStart start) { data_start_ = start; }
  /// Sets the run's last step (from 1), after which a round of training.local ends, too. Set the same value on all ranks.
  void set_last_step(int64_t last) { rounds_.last = last; }
  /// Seconds that this rank has spent reading samples and copying them to the device, without waiting for other ranks.
  double input_seconds() const { return input_seconds_; }
  /// With training.local, the rounds of steps; else each step is a round.
  const Rounds& rounds() const { return rounds_; }
  /// Bytes that this rank sends in the outer steps of a round of training.local; 0 without it.
  double outer_bytes() const { return local_ ? local_->round_bytes() : 0; }
  /// With training.asynchronous: `rates` gives the learning rate of a step (from 0), as servers may apply it before this rank starts it; else all
  /// steps of a round have that of its first. `order`: by step, the workers of the gradients of each update, in the order of a log that the steps
  /// repeat.
  void set_learning_rates(std::function<double(int64_t)> rates) { rates_ = std::move(rates); }
  void set_order(std::map<int64_t, std::vector<int>> order) { order_ = std::move(order); }
  /// With security.privacy, before the first step: where samples and noise are drawn from, and the noise multiplier. Set the same values on all ranks.
  void set_privacy(const crypto::PrivateRandom& random, double noise);
  /// Trains on the global batch of `step` (from 0), or with several islands on this island's part of it.
  StepResult step(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits = {});
  /// The two halves of step(): `start` queues the whole step, update included, without waiting for the device; `finish` waits for its results. At
  /// most one further step may be started before a step is finished. The ranks compare the results that `finish` reads, because each acts on its own
  /// copy of them.
  /// Errors of `finish`: AgreedError (internal) on all ranks if the results differ between them, which is a fault of a memory, link or processor. The
  /// weights may then differ as well.
  struct StepInFlight {
    ScalarReadback scalars;  ///< in the order of Readback
    int64_t step = 0;        ///< from 0
    double loss_factor = 0;  ///< mean loss = summed loss * loss_factor
    double learning_rate = 0;
    int64_t targets = 0, local_targets = 0;     ///< valid tokens of the global batch, and of this data rank
    int64_t padding = 0;                        ///< StepResult::padding
    double cost_imbalance = 0;                  ///< StepResult::cost_imbalance
    std::vector<double> distances = {};         ///< StepResult::distances
    std::optional<ScalarReadback> outer = {};   ///< figures of the outer steps that follow
    double outer_bytes = 0;                     ///< sent in them
    std::optional<AppliedUpdate> applied = {};  ///< with parameter servers; then nothing is in flight
    std::optional<Arrivals> exchanged = {};     ///< StepResult::exchanged
  };
  StepInFlight start(const Dataset& data, int64_t step, double learning_rate, const StepLimits& limits = {});
  StepResult finish(const StepInFlight& step);
  /// Splits steps and evaluations like this from now on; evenly from the start. What is trained does not depend on it, except for the order of sums. Set
  /// the same value on all ranks, between steps.
  void set_micro_batches(const MicroBatchSplit& split);
  const MicroBatchSplit& micro_batches() const { return split_; }
  /// Index of this rank's data rank in a split.
  int data_rank() const { return mesh_.at.island * mesh_.data->size() + mesh_.data->rank(); }
  /// From now on each data rank computes the samples of the one `by` places after it; 0 from the start. What is trained does not depend on it, except
  /// for the order of sums. Set the same value on all ranks.
  void rotate_data(int by);
  /// The sample of `data` at place `place` of the global batch of `step` (from 0).
  int64_t sample(const Dataset& data, int64_t step, int64_t place) const { return sampler(data).sample(step, place); }
  /// Queues forward and backward of `step` without partial sums, norm and update. Only the gradients change, which every step clears.
  void rehearse(const Dataset& data, int64_t step);

  /// While it lives, the stages have the weights that all islands share. Within another one it does nothing.
  class SharedWeights {
   public:
    explicit SharedWeights(Trainer& trainer) : trainer_(trainer), exchanges_(trainer.keeps_island_weights() && !trainer.has_shared_weights_) {
      exchange();
    }
    ~SharedWeights() noexcept(false) {
      if (std::uncaught_exceptions() > exceptions_) return;  // the run ends, and a second error would hide the first
      exchange();
    }
    SharedWeights(const SharedWeights&) = delete;
    SharedWeights& operator=(const SharedWeights&) = delete;

   private:
    void exchange() {
      if (!exchanges_) return;
      trainer_.shared_->exchange(trainer_.ctx_);
      trainer_.has_shared_weights_ = !trainer_.has_shared_weights_;
    }
    Trainer& trainer_;
    const bool exchanges_;
    const int exceptions_ = std::uncaught_exceptions();
  };

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

  /// Whether steps are updates of parameter servers.
  bool has_parameter_servers() const { return trireme::has_parameter_servers(config_.training); }
  /// Bytes that this rank sends to and receives from servers of training.asynchronous for a gradient or an exchange; 0 without them.
  double server_bytes() const { return server_ ? server_->bytes_per_push() : 0; }
  /// The gradient of each layer: "embedding", "blocks.0", ..., "final_norm", "head". The squares of the norms add up to the square of
  /// StepResult::grad_norm, up to rounding. Empty on a GPU, where only the sum is computed, and with
  /// parameter servers, where the last gradient of this rank is not that of a step.
  std::vector<LayerGradient> layer_gradients();
  /// Counts the last step for LayerGradient::zero_steps. A step that is executed several times counts once, one without a target not at all.
  void count_layer_gradients() { layer_gradients_.count_step(); }

  /// For observe.activations: records the steps started from now on. On a GPU they are queued without a CUDA graph, with the same bits.
  void record_activations(bool on);
  /// The largest magnitude of the residual stream after the embedding and after each block in the last recorded step, over all tokens of the global
  /// batch: "embedding", "blocks.0", ... NaN if a value is. Waits for the device.
  std::vector<std::pair<std::string, double>> activation_maxima();

  /// Sets the initial weights: a function of (seed, name, global index) only.
  void initialise();
  std::vector<OwnedBox> owned_boxes() const;
  std::vector<ReducerBox> reducer_boxes() const;
  std::vector<ReducerMatrix> reducer_matrices() const;
  /// Call after modifying weights in place: marks gathered copies stale.
  void weights_changed();
  /// Call after replacing all weights: weights_changed(); the moving average, training.local and the centre of elastic averaging restart from them.
  void weights_replaced();
  /// The moving average starts from the current weights.
  void start_average();
  /// start_round(), and with training.local the momentum of the outer step becomes zero.
  void start_local_updates();
  /// The state between two rounds has been loaded. Unless islands keep weights of their own, the current weights become the shared ones.
  void start_round();
  /// Where islands have weights of their own, these become the shared ones.
  void take_shared_weights();

  int64_t accepted_steps() const { return accepted_steps_; }
  void set_accepted_steps(int64_t steps);
  /// The loss scale after the finished steps.
  LossScale loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& loss_scale);
  const Config& config() const { return config_; }
  /// Reports every action to `progress` from now on; it must outlive the trainer.
  void watch(Progress& progress);
  /// Records steps from now on, the actions in `actions` and the rest in `trace`; both null: none. On a GPU a recorded step is queued even if the
  /// configuration captures steps in a CUDA graph, because a launch of a graph does not record the times of its parts. Its bits are the same.
  void trace(StepTrace* trace, TimelineRecorder* actions) {
    trace_ = trace;
    actions_ = actions;
  }
  /// Matrix products of the last queued step on this rank for which cuBLASLt has no kernel; 0 on other devices. See cuda::ProductCounts::plain.
  int64_t plain_products() const { return plain_products_; }
  /// Whether replicas are equal or may diverge. All current configurations keep them equal. Set the same value on all ranks.
  ReplicaContract replica_contract() const { return replica_contract_; }
  void set_replica_contract(ReplicaContract contract) { replica_contract_ = contract; }
  /// True if, by the contract, this rank's shard enters sums over the ranks of the step.
  bool counts_shard() const { return counts_own_shard(replica_contract_, mesh_.at.replicate); }
  /// True if this rank has a part of the loss in StepResult::local_loss.
  bool counts_loss() const { return last_ != nullptr && mesh_.at.tensor == 0; }
  /// True if it also enters sums over the world, and checkpoints have its weights, which are those of all islands after an outer step.
  bool represents_shard() const { return counts_shard() && mesh_.at.island == 0; }
  /// True if all islands have the same shared weights: before the first step of a round.
  bool islands_agree() const { return islands_agree_; }
  /// True if islands have weights of their own beside the shared ones.
  bool keeps_island_weights() const { return shared_ && trireme::keeps_island_weights(config_.training); }
  Mesh& mesh() { return mesh_; }
  Context& context() { return ctx_; }
  const ActionList& training_list() const { return training_list_; }
  /// The stages of this rank, ascending: one, or several with virtual stages.
  const std::vector<std::unique_ptr<TransformerStage>>& stages() const { return stages_; }
  /// The only stage of this rank. Errors: InternalError if there are several.
  TransformerStage& stage() const;
  const std::vector<int>& stage_rank() const { return stage_rank_; }  ///< pipeline rank of each stage

 private:
  /// Fills batch_, and counts the unmasked targets of the global batch and, in local_targets_, of what this rank computes of batch_; with data.packing
  /// also the padding of the global batch, in padding_. `sample_of`: index in the global batch -> sample of the data set.
  int64_t read_batch(const Dataset& data, const std::function<int64_t(int64_t)>& sample_of);
  std::vector<int64_t> balanced(const Dataset& data, const std::function<int64_t(int64_t)>& sample_of);
  Sampler sampler(const Dataset& data) const;
  std::vector<int64_t> draw_samples(const Dataset& data, int64_t step);
  std::vector<std::vector<int64_t>> drawn_ranks(const std::vector<int64_t>& samples) const;
  void split_samples(const MicroBatchSplit& split);
  double sample_weight() const;
  void start_clip(int microbatch);
  void wait_clip(int microbatch);
  void add_noise();
  void add_noise_to(const Tensor& gradient, const Box& box, const ParamSpec& spec, const std::string& stream);
  void add_noise_of_rank(const TransformerStage& stage, int unit, const Tensor& gradient);
  std::vector<double> run_text(std::span<const int32_t> tokens, int64_t position, RunMode mode);
  void queue_text(std::span<const int32_t> tokens, const Microbatch& place, RunMode mode, const ActionList& list);
  std::vector<double> gather_logits(const Tensor& mine);
  void begin(RunMode mode, std::vector<Microbatch> microbatches, int64_t sequence, int64_t step);
  void use(const LoweredSchedule& schedule);
  void connect_pipelines();
  bool computes(size_t number) const;
  void make_optimizers();
  void add_owned_boxes(size_t stage, std::vector<OwnedBox>& boxes) const;
  double write_inputs(const Dataset& data, int64_t step);
  void handle_actions();
  void queue_step(std::span<const Action> list, int64_t step);
  void queue_list(std::span<const Action> list, int64_t step);
  void aggregate_gradients();
  void norm();
  void take_outer_steps();
  void exchange_with_islands();
  void launch_graph(int64_t step);
  void make_parameter_server();
  StepInFlight start_asynchronous(const Dataset& data, int64_t step, double learning_rate);
  StepResult finish_asynchronous(const StepInFlight& step);
  std::vector<int> order_of_round(int64_t begin, int64_t end) const;
  void start_asynchronous_round(int64_t step, double learning_rate);
  void compute_assigned_gradient(const Dataset& data);
  void push_gradient();
  void push_and_pull(const GradientFigures& figures);
  void end_asynchronous_round();
  Arrivals average_elastically(int64_t step);
  void step_without_lock(int64_t step);
  std::string offender_name(int64_t index);
  void note(const char* what, int64_t number);

  Context& ctx_;
  Config config_;
  std::unique_ptr<Communicator> blocking_;  ///< wraps the world if parallel.overlap is false
  Mesh mesh_;
  ReplicaContract replica_contract_ = ReplicaContract::kEqual;
  Precision precision_;
  MicroBatchSplit split_;
  std::vector<int> stage_rank_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;
  TransformerStage* last_ = nullptr;  ///< the last stage of the model, if on this rank
  std::unique_ptr<Executor> executor_;
  Progress* progress_ = nullptr;
  StepTrace* trace_ = nullptr;
  TimelineRecorder* actions_ = nullptr;
  bool records_activations_ = false;
  std::unique_ptr<SharedShards> shared_;     ///< with training.local, and with elastic averaging
  std::unique_ptr<LocalUpdates> local_;      ///< with training.local
  std::unique_ptr<ParameterServer> server_;  ///< with parameter servers, and with elastic averaging
  std::unique_ptr<Hogwild> hogwild_;         ///< with hogwild
  /// With security.privacy. Steps draw different numbers of samples, so their numbers of micro-batches differ, too.
  struct Privacy {
    std::optional<crypto::PrivateRandom> random;
    double noise = 0;
    struct Lists {
      ActionList training, evaluation;
    };
    std::map<int, Lists> lists;  ///< of this rank, by the largest number of micro-batches of a data rank
    /// A micro-batch between CLIP and WAIT_CLIP.
    struct Clip {
      Tensor squares;     ///< [samples] f64
      Work sum;           ///< over the pipeline
      Tensor token_rows;  ///< being sent from the last stage to the first; only there
      Work send;
    };
    std::map<int, Clip> clips;
  };
  Privacy privacy_;
  std::optional<Assignment> assigned_;         ///< the next gradient of this rank's island; none between rounds
  std::optional<int64_t> round_begin_;         ///< the first step, from 0, of the asynchronous round that has begun
  std::function<double(int64_t)> rates_;       ///< set_learning_rates
  std::map<int64_t, std::vector<int>> order_;  ///< set_order
  Rounds rounds_;
  bool has_shared_weights_ = false;  ///< a SharedWeights lives
  bool islands_agree_ = true;
  std::optional<Rerouting> rerouting_;                ///< with resilience.reroute
  ActionList longest_training_, longest_evaluation_;  ///< of the data rank that has the most micro-batches
  ActionList training_list_, evaluation_list_, text_list_;
  Tensor sums_, norm_, scalars_;             ///< f64: [kStepSums], [1], [kStepScalars]
  Tensor local_sums_;                        ///< sums_ before the sum over the ranks
  std::vector<Microbatch> batch_;            ///< micro-batches of this data rank, then those that this rank computes for other ones
  size_t own_microbatches_ = 0;              ///< of batch_
  std::vector<Tensor> gradients_;            ///< owned_gradients
  std::vector<std::string> gradient_names_;  ///< of gradients_
  LayerGradients layer_gradients_;           ///< of this rank's part of the gradients; with loss scale
  Tensor offender_;                          ///< [1] f64: index in gradients_ of a rejected step's first non-finite one
  cuda::Gpu::Graph graph_;                   ///< captured step
  int eager_steps_ = 0;                      ///< steps run before the capture
  int64_t plain_products_ = 0;               ///< of the last queue_step
  int64_t accepted_steps_ = 0;               ///< among the finished steps
  AdamW hyper_;
  LossScaling scaling_;
  LossScale loss_scale_;   ///< after finished steps
  double used_scale_ = 1;  ///< the loss scale of the last finished step
  DataStart data_start_;
  int64_t step_ = 0;     ///< being computed, from 0
  int64_t targets_ = 0;  ///< valid ones of the global batch read last
  int64_t local_targets_ = 0;
  int64_t padding_ = 0;                  ///< of the batch read last
  double cost_imbalance_ = 0;            ///< of the batch read last
  double input_seconds_ = 0;             ///< input_seconds()
  std::vector<double> distances_;        ///< StepResult::distances of the last step
  std::optional<ScalarReadback> outer_;  ///< figures of the outer steps of the step being started
  std::optional<Arrivals> exchanged_;    ///< StepResult::exchanged, likewise
};

}  // namespace trireme
