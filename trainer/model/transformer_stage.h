#pragma once
#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/stage.h"
#include "parallel/sharding/compressed_reducer.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/low_rank_reducer.h"
#include "parallel/sharding/param_store.h"
#include "parallel/sharding/robust_reducer.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/model/declare.h"
#include "trainer/model/parts.h"

namespace trireme {

enum class RunMode : uint8_t {
  kTrain,     ///< keeps what the backward needs
  kEvaluate,  ///< loss only
  kLogits,    ///< no targets: the last stage keeps the logits
  kDecode,    ///< one text: the last stage keeps the logits of its last row (sequence parallelism: one row of each tensor rank), and blocks fill the
              ///< KV cache if make_cache() was called
};

struct StageOptions {
  bool sequence_parallel = false;
  ZeroPolicy policy;
  Precision precision;
  CompressionOptions compression = {.encoding = {.encoding = Encoding::kNone}};
  EncodingOptions parameters = {.encoding = Encoding::kNone};  ///< of gathers
  AggregationOptions aggregation = {};
  uint64_t seed = 0;
  int64_t logits_chunk = 1;  ///< rows of logits computed at a time
  int64_t blocks_per_unit = 1;
  std::vector<Recompute> recompute;  ///< one entry per block of the model
  bool recompute_elementwise = true;
  bool with_gradients = true;
  bool clips_samples = false;           ///< each sample's gradient gets a factor between I and W: add_sample_squares()
  bool with_activation_maxima = false;  ///< record_activations() may be called
};

/// A range of a transformer's blocks as a pipeline Stage, with its parameters (ParamStore), their gradients (GradStore) and their optimizer. Tensor
/// parallelism, pipeline and sharding meet here.
class TransformerStage : public Stage {
 public:
  /// `first`: the first stage if it is a different stage of this rank, else null; must outlive this stage.
  TransformerStage(Context& ctx, const ModelConfig& model, Mesh& mesh, const StageRange& range, const StageOptions& options, TransformerStage* first);

  /// Call on every stage, with the same arguments, before each run of an action list.
  void begin(Context& ctx, std::vector<Microbatch> microbatches, int64_t sequence, RunMode mode, uint64_t step);

  /// Allocates the KV caches for a text of `room` tokens, at most max_positions: 2 * room * K*H elements per block, or 2 * window * K*H if the block
  /// has a narrower window.
  void make_cache(Context& ctx, int64_t room);

  /// From now on, training records the largest magnitude of each part's output, the residual stream: activation_maxima().
  void record_activations(bool on) { records_activations_ = on; }
  /// [parts()] f64: maxima over the rows of this rank and the micro-batches run since begin(); NaN if one is NaN, 0 for the head.
  const Tensor& activation_maxima() const { return activation_maxima_; }

  /// Creates the optimizer that UPDATE runs. `scalars` (kernels/ops/optimizer.h) are read by every update.
  void make_optimizer(Context& ctx, const OptimizerOptions& options, const Precision& precision, const Tensor& scalars);
  /// Call after the weights were replaced: the moving average, if there is one, restarts from them.
  void start_average(Context& ctx) { optimizer_->start_average(ctx, *params_); }

  int parts() const override { return static_cast<int>(parts_.size()); }
  std::string part_name(int part) const override { return this->part(part).name; }
  std::string unit_name(int unit) const override { return owned_units_[static_cast<size_t>(unit)]->name(); }
  void forward(Context& ctx, int microbatch, int part) override;
  void backward_input(Context& ctx, int microbatch, int part) override;
  void backward_weight(Context& ctx, int microbatch, int part) override;
  void backward(Context& ctx, int microbatch, int part) override;
  /// With StageOptions::clips_samples, after the last I of a micro-batch and before its first W: adds the squares of each sample's gradient of this stage's
  /// parameters. Those of a tied embedding lack the product of its two gradients: add_tied_squares().
  void add_sample_squares(Context& ctx, int microbatch, SampleSquares& squares);
  /// First stage: adds twice the inner product of the embedding's gradient with the tied head's, of each sample. `rows`: of the last stage.
  void add_tied_squares(Context& ctx, int microbatch, const Tensor& rows, SampleSquares& squares) const;
  /// Last stage with a tied head: hands over VocabParallelHead::SampleSaved::token_rows.
  Tensor take_token_rows(int microbatch) { return std::exchange(slots_[static_cast<size_t>(microbatch)].head.samples.token_rows, Tensor()); }
  /// Every W of the micro-batch multiplies what it reads by these factors [B] f64.
  void set_sample_factors(int microbatch, const Tensor& factors) { slots_[static_cast<size_t>(microbatch)].factors = factors; }
  Tensor recv_forward_buffer(Context& ctx, int microbatch) override;
  Tensor take_forward_output(int microbatch) override;
  Tensor recv_backward_buffer(Context& ctx, int microbatch) override;
  Tensor take_backward_output(int microbatch) override;
  void put_forward_input(int microbatch, Tensor x) override { slots_[static_cast<size_t>(microbatch)].x = std::move(x); }
  void put_backward_input(int microbatch, Tensor dy) override { slots_[static_cast<size_t>(microbatch)].dx = std::move(dy); }
  void unshard(Context& ctx, int unit) override { params_->unshard(ctx, unit); }
  void reshard(Context& ctx, int unit) override { params_->reshard(ctx, unit); }
  void reduce_grads(Context& ctx, int unit) override { grads_->reduce(ctx, unit); }
  void reduce_replicas(Context& ctx, int unit) override { grads_->reduce_replicas(ctx, unit); }
  void reduce_tied(Context& ctx, int unit) override { grads_->reduce_tied(ctx, unit, *mesh_.embedding); }
  void wait_grads(Context& ctx, int unit) override { grads_->wait(ctx, unit); }
  void sum_partial(Context& ctx) override;
  void orthogonalize(Context& ctx) override;
  void update(Context& ctx, int unit) override;

  const StageRange& range() const { return range_; }
  const Region& region() const { return region_; }
  ParamStore& params() const { return *params_; }
  GradStore& grads() const { return *grads_; }
  RobustReducer* robust_reducer() const { return robust_; }               ///< of grads(); null if gradients are summed
  const ShardedOptimizer* optimizer() const { return optimizer_.get(); }  ///< null before make_optimizer()
  /// [1] f64, read by every backward of the last stage: factor of the gradient of each token's loss, with the loss scale once a step is queued.
  Tensor loss_factor() const { return loss_factor_; }
  Tensor loss_sum() const { return loss_sum_; }  ///< [1] f64, last stage: sum over the micro-batches run since begin()
  Tensor logits(int microbatch) const { return slots_[static_cast<size_t>(microbatch)].head.logits; }  ///< [M or 1, >= V/t], kLogits or kDecode

 private:
  struct Head {
    Norm norm;
    VocabParallelHead vocabulary;
    struct Saved {
      Tensor x;
      Tensor logits;  ///< kLogits and kDecode only: training and evaluation compute them chunk by chunk
      Norm::Saved norm;
      VocabParallelHead::SampleSaved samples;  ///< clips_samples
    };
  };
  /// State of one micro-batch on this stage.
  struct Slot {
    Tensor x, dx;  ///< current activation and current gradient
    std::vector<TransformerBlock::Saved> blocks;
    Tensor dembedded;
    Tensor dembedded_all;  ///< clips_samples: of all rows of the micro-batch
    Tensor factors;        ///< clips_samples: set_sample_factors()
    Head::Saved head;
  };
  const Part& part(int part) const { return parts_[static_cast<size_t>(part)]; }
  bool is_embedding(int part) const { return this->part(part).kind == PartKind::kEmbedding; }
  bool is_head(int part) const { return this->part(part).kind == PartKind::kHead; }
  size_t block_of(int part) const { return static_cast<size_t>(this->part(part).block - range_.first_block); }
  /// The embedding's gradient from that of the residual stream: multiplied by the embedding's factor.
  Tensor scaled_back(Context& ctx, const Tensor& dembedded) const;
  bool trains_positions() const { return positions_ != nullptr && positions_->trainable(); }
  void wait_parameters(Context& ctx, int part);
  void acquire_gradients(Context& ctx, int part);
  ForwardContext pass(int microbatch) const;
  int64_t samples_of(int microbatch) const { return microbatches_[static_cast<size_t>(microbatch)].tokens.numel() / sequence_; }
  Tensor embed(Context& ctx, int microbatch);
  void run_head(Context& ctx, int microbatch);
  void scale_samples(Context& ctx, int microbatch, int part);

  const TransformerStage& owner(const UnitRef& unit) const { return unit.stage < 0 ? *this : *first_; }

  Mesh& mesh_;
  TransformerStage* first_;
  StageRange range_;
  Region region_;
  std::vector<Part> parts_;
  StageUnits units_;
  Dims dims_;
  double dropout_;
  bool trains_tied_;
  bool clips_samples_;
  uint64_t seed_;
  DType dtype_;
  std::vector<std::unique_ptr<Unit>> owned_units_;
  VocabParallelEmbedding embedding_{};
  Param* positions_ = nullptr;  ///< learned, [P,D]
  double embedding_scale_ = 1;  ///< as rounded to the run's dtype
  std::vector<TransformerBlock> blocks_;
  Head head_{};
  std::unique_ptr<ParamStore> params_;
  std::unique_ptr<GradStore> grads_;
  RobustReducer* robust_ = nullptr;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  Tensor scalars_;  ///< optimizer scalars, shared by all stages of the rank

  std::vector<Microbatch> microbatches_;
  std::vector<Slot> slots_;
  std::vector<KeyValueCache> caches_;  ///< one per block; empty until make_cache()
  int64_t sequence_ = 0;
  RunMode mode_ = RunMode::kTrain;
  uint64_t step_ = 0;
  Tensor loss_factor_, loss_sum_;  ///< [1] f64
  Tensor activation_maxima_;
  bool records_activations_ = false;
};

/// The stages of a rank, ascending: one, or several with virtual stages.
using Stages = std::vector<std::unique_ptr<TransformerStage>>;

}  // namespace trireme
