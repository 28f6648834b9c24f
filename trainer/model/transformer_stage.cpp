#include "trainer/model/transformer_stage.h"

#include <algorithm>
#include <utility>

#include "kernels/ops/embedding.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/samples.h"
#include "trainer/model/rope_frequencies.h"

namespace trireme {

namespace {

std::unique_ptr<Reducer> make_reducer(Context& ctx, const std::vector<Unit*>& units, const StageOptions& options) {
  const Precision& precision = options.precision;
  if (options.aggregation.rule != AggregationRule::kMean)
    return std::make_unique<RobustReducer>(ctx, units, options.aggregation, options.compression, precision.gradient);
  if (options.compression.encoding.encoding == Encoding::kLowRank)
    return std::make_unique<LowRankReducer>(ctx, units, options.compression, precision.reduce, precision.gradient);
  if (options.compression.encoding.encoding == Encoding::kNone) return std::make_unique<SumReducer>(precision.reduce);
  return std::make_unique<CompressedReducer>(ctx, units, options.compression, precision.reduce, precision.gradient);
}

/// The rotary tables of a model, [positions, rotated elements of a head] each. Attention without rotary positions has an empty one.
std::map<RopeSpec, Tensor> fill_rope_tables(Context& ctx, const ModelConfig& model, int64_t positions, DType dtype) {
  std::map<RopeSpec, Tensor> tables{{RopeSpec(), Tensor()}};
  for (const RopeSpec& rope : rope_tables(model)) {
    const Tensor table = Tensor::empty(ctx, {positions, rope.rotated}, dtype, MemoryCategory::kWorkspace);
    rope_table(ctx, rope_frequencies(rope.theta, rope.rotated, rope.scaled ? model.rope_scaling : RopeScalingConfig()), table);
    tables[rope] = table;
  }
  return tables;
}

}  // namespace

TransformerStage::TransformerStage(Context& ctx, const ModelConfig& model, Mesh& mesh, const StageRange& range, const StageOptions& options,
                                   TransformerStage* first)
    : mesh_(mesh),
      first_(first),
      range_(range),
      region_(*mesh.tensor, options.sequence_parallel),
      parts_(parts_of(model, range, options.blocks_per_unit)),
      units_(stage_units(parts_, range, model, first != nullptr, options.clips_samples)),
      dims_(model, mesh.tensor->size()),
      dropout_(model.dropout),
      trains_tied_(has_tied_gradients(model)),
      clips_samples_(options.clips_samples),
      seed_(options.seed),
      dtype_(options.precision.compute) {
  dispatch_float(dtype_, [&]<class T>(T) { embedding_scale_ = static_cast<double>(static_cast<T>(embedding_scale(model))); });
  for (const std::string& name : unit_names(parts_, range, first != nullptr))
    owned_units_.push_back(std::make_unique<Unit>(name, mesh.shard_group()));
  const auto find = [&](const std::string& name) -> Unit* {
    const auto found = std::ranges::find(owned_units_, name, [](const std::unique_ptr<Unit>& owned) { return owned->name(); });
    return found == owned_units_.end() ? nullptr : found->get();
  };
  const auto units = [&](const std::string& name) { return PartUnits(find(name), find(adapter_unit(name)), find(frozen_unit(name))); };
  const Declaration declare(model, region_);
  const std::map<RopeSpec, Tensor> ropes = fill_rope_tables(ctx, model, dims_.P, accumulator_of(dtype_));
  for (const Part& part : parts_) {
    const PartUnits own = units(part.unit);
    switch (part.kind) {
      case PartKind::kEmbedding:
        embedding_ = declare.embedding(own);
        if (has_learned_positions(model)) positions_ = declare.positions(units(kPositionsUnit));
        break;
      case PartKind::kBlock:
        blocks_.push_back(declare.block(own, part, ropes.at(part.block_spec.attention.rope)));
        blocks_.back().recompute = options.recompute[static_cast<size_t>(part.block)];
        blocks_.back().keep_elementwise(!options.recompute_elementwise);
        break;
      case PartKind::kHead: {
        head_.norm = declare.final_norm(own);
        Param* weight = !model.tied_embeddings ? declare.head(own)
                        : range.first()        ? embedding_.weight
                        : first_ != nullptr    ? first_->embedding_.weight
                                               : declare.tied_embedding(units(kEmbeddingUnit));
        head_.vocabulary = {
            {weight, nullptr, LinearSplit::kOutputs, &region_, "head"}, {&weight->specs.front(), mesh.tensor.get()}, options.logits_chunk};
      }
    }
  }
  std::vector<Unit*> all;
  for (const auto& owned : owned_units_) all.push_back(owned.get());
  params_ = std::make_unique<ParamStore>(ctx, all, options.policy, options.precision, options.parameters);
  const Precision& precision = options.precision;
  if (options.with_gradients) {
    std::unique_ptr<Reducer> reducer = make_reducer(ctx, all, options);
    robust_ = dynamic_cast<RobustReducer*>(reducer.get());
    grads_ = std::make_unique<GradStore>(ctx, all, options.policy, precision.gradient, std::move(reducer));
  }
  loss_factor_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  loss_sum_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  if (options.with_activation_maxima) activation_maxima_ = Tensor::zeros(ctx, {parts()}, DType::kF64, MemoryCategory::kWorkspace);
}

Tensor TransformerStage::scaled_back(Context& ctx, const Tensor& dembedded) const {
  if (embedding_scale_ == 1) return dembedded;
  const Tensor scaled = Tensor::empty(ctx, dembedded.shape(), dembedded.dtype(), MemoryCategory::kActivations);
  scale(ctx, dembedded, embedding_scale_, scaled);
  return scaled;
}

void TransformerStage::begin(Context& ctx, std::vector<Microbatch> microbatches, int64_t sequence, RunMode mode, uint64_t step) {
  microbatches_ = std::move(microbatches);
  slots_.clear();
  slots_.resize(microbatches_.size());
  for (Slot& slot : slots_) slot.blocks.resize(blocks_.size());
  sequence_ = sequence;
  mode_ = mode;
  step_ = step;
  fill(ctx, 0, loss_sum_);
  if (records_activations_) fill(ctx, 0, activation_maxima_);
}

void TransformerStage::make_cache(Context& ctx, int64_t room) {
  caches_.clear();
  for (const TransformerBlock& block : blocks_) {
    const int64_t tokens = std::min(room, dims_.P), window = block.attention.window;
    const Shape shape{window > 0 ? std::min(tokens, window) : tokens, dims_.local_K * dims_.H};
    caches_.push_back(
        {Tensor::empty(ctx, shape, dtype_, MemoryCategory::kActivations), Tensor::empty(ctx, shape, dtype_, MemoryCategory::kActivations)});
  }
}

void TransformerStage::make_optimizer(Context& ctx, const OptimizerOptions& options, const Precision& precision, const Tensor& scalars) {
  optimizer_ = std::make_unique<ShardedOptimizer>(ctx, *params_, options, precision, *mesh_.tensor);
  scalars_ = scalars;
}

void TransformerStage::sum_partial(Context& ctx) {
  ctx.arena->set_phase(MemoryPhase::kOptimizer);
  if (robust_ != nullptr)
    robust_->sum_partial(ctx, *mesh_.tensor, *mesh_.kv);
  else
    grads_->sum_partial(ctx, *mesh_.tensor, *mesh_.kv);
}

void TransformerStage::orthogonalize(Context& ctx) {
  ctx.arena->set_phase(MemoryPhase::kOptimizer);
  optimizer_->orthogonalize(ctx, scalars_, *params_, *grads_);
}

void TransformerStage::update(Context& ctx, int unit) {
  optimizer_->update(ctx, scalars_, *params_, *grads_, unit);
  grads_->settle(ctx, unit, scalars_);
}

ForwardContext TransformerStage::pass(int microbatch) const {
  const Microbatch& batch = microbatches_[static_cast<size_t>(microbatch)];
  const int64_t rows = batch.tokens.numel();
  const double dropout = mode_ == RunMode::kTrain ? dropout_ : 0;
  return {sequence_, rows, region_.first_row(rows), batch.first_sample, seed_, step_, dropout, batch.documents, batch.position};
}

void TransformerStage::wait_parameters(Context& ctx, int part) {
  for (const UnitRef& unit : units_.units_of_part[static_cast<size_t>(part)]) owner(unit).params_->wait(ctx, unit.unit);
}

void TransformerStage::acquire_gradients(Context& ctx, int part) {
  for (const UnitRef& unit : units_.units_of_part[static_cast<size_t>(part)]) owner(unit).grads_->acquire(ctx, unit.unit);
}

Tensor TransformerStage::embed(Context& ctx, int microbatch) {
  const ForwardContext now = pass(microbatch);
  const Tensor x = embedding_.forward(ctx, microbatches_[static_cast<size_t>(microbatch)].tokens);
  if (embedding_scale_ != 1) scale(ctx, x, embedding_scale_, x);
  if (positions_)
    position_forward(ctx, positions_->value.rows(now.position, sequence_), now.first_row, sequence_, x, now.documents.rows(now.first_row, x.dim(0)));
  now.drop(ctx, "embedding", x);
  return x;
}

void TransformerStage::run_head(Context& ctx, int microbatch) {
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  Head::Saved& saved = slot.head;
  saved.x = std::move(slot.x);
  if (mode_ == RunMode::kTrain) return;  // the backward computes the loss with its gradient
  if (mode_ == RunMode::kDecode) {
    // Under sequence parallelism every tensor rank contributes a row, of which one is the last of the text.
    const int64_t rows = saved.x.dim(0), last = microbatches_[static_cast<size_t>(microbatch)].last_row;
    saved.x = saved.x.rows(last < 0 ? rows - 1 : last % rows, 1);
  }
  const Tensor normalised = head_.norm.forward(ctx, saved.x, saved.norm);
  if (mode_ == RunMode::kLogits || mode_ == RunMode::kDecode) saved.logits = head_.vocabulary.logits.forward(ctx, normalised);
  if (mode_ != RunMode::kEvaluate) return;
  head_.vocabulary.forward(ctx, normalised, microbatches_[static_cast<size_t>(microbatch)].targets, loss_sum_);
  saved = {};
}

void TransformerStage::forward(Context& ctx, int microbatch, int part) {
  if (mode_ == RunMode::kTrain) ctx.arena->set_phase(MemoryPhase::kForward);
  wait_parameters(ctx, part);
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  if (is_embedding(part)) {
    slot.x = embed(ctx, microbatch);
  } else if (is_head(part)) {
    run_head(ctx, microbatch);
  } else {
    TransformerBlock::Saved& saved = slot.blocks[block_of(part)];
    ForwardContext now = pass(microbatch);
    if (mode_ == RunMode::kDecode && !caches_.empty()) now.cache = &caches_[block_of(part)];
    slot.x = blocks_[block_of(part)].forward(ctx, now, slot.x, saved);
    if (mode_ != RunMode::kTrain) saved = {};
  }
  if (records_activations_ && mode_ == RunMode::kTrain && !is_head(part)) max_absolute(ctx, slot.x, activation_maxima_.flat(part, 1));
}

void TransformerStage::backward_input(Context& ctx, int microbatch, int part) {
  ctx.arena->set_phase(MemoryPhase::kBackward);
  wait_parameters(ctx, part);
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  if (is_head(part) && clips_samples_) {
    Head::Saved& saved = slot.head;
    const Microbatch& batch = microbatches_[static_cast<size_t>(microbatch)];
    const Tensor normalised = head_.norm.forward(ctx, saved.x, saved.norm);
    const Tensor dnormalised = head_.vocabulary.backward_input(ctx, normalised, batch.targets, loss_factor_, loss_sum_, samples_of(microbatch),
                                                               trains_tied_ ? batch.tokens : Tensor(), saved.samples);
    slot.dx = head_.norm.backward_input(ctx, dnormalised, saved.x, Tensor(), saved.norm);
  } else if (is_head(part)) {
    acquire_gradients(ctx, part);
    Head::Saved& saved = slot.head;
    const Tensor& targets = microbatches_[static_cast<size_t>(microbatch)].targets;
    const Tensor dnormalised = head_.vocabulary.forward_backward(ctx, head_.norm.forward(ctx, saved.x, saved.norm), targets, loss_factor_, loss_sum_);
    slot.dx = head_.norm.backward(ctx, dnormalised, saved.x, Tensor(), saved.norm);
    saved = {};
  } else if (is_embedding(part)) {
    slot.dembedded = std::move(slot.dx);  // the embedding has no input gradient: its backward is all W
    pass(microbatch).drop(ctx, "embedding", slot.dembedded);
  } else {
    slot.dx = blocks_[block_of(part)].backward_input(ctx, pass(microbatch), slot.dx, slot.blocks[block_of(part)]);
  }
}

void TransformerStage::backward_weight(Context& ctx, int microbatch, int part) {
  ctx.arena->set_phase(MemoryPhase::kBackward);
  TRIREME_CHECK(!is_head(part) || clips_samples_, "the head computes its weight gradients in backward_input");
  if (is_head(part)) wait_parameters(ctx, part);  // it computes its logits again
  acquire_gradients(ctx, part);
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  const Microbatch& batch = microbatches_[static_cast<size_t>(microbatch)];
  if (clips_samples_) scale_samples(ctx, microbatch, part);
  if (is_embedding(part)) {
    const ForwardContext now = pass(microbatch);
    if (clips_samples_ && embedding_.weight->trainable())
      embedding_.backward_gathered(ctx, batch.tokens, slot.dembedded_all);
    else if (embedding_.weight->trainable())
      embedding_.backward_weight(ctx, batch.tokens, scaled_back(ctx, slot.dembedded));
    if (trains_positions()) {
      const Tensor& dy = slot.dembedded;
      position_backward(ctx, dy, now.first_row, sequence_, positions_->grad_to_add_to(ctx), now.documents.rows(now.first_row, dy.dim(0)));
    }
    slot.dembedded.reset();
    slot.dembedded_all.reset();
  } else if (is_head(part)) {
    head_.vocabulary.backward_weight(ctx, batch.targets, loss_factor_, slot.factors, slot.head.samples);
    head_.norm.backward_weight(ctx, slot.head.x, slot.head.norm);
    slot.head = {};
  } else {
    TransformerBlock::Saved& saved = slot.blocks[block_of(part)];
    blocks_[block_of(part)].weight_gradients(saved, [&](const WeightGradients& layer) { add_weight_gradients(ctx, layer); });
    saved = {};
  }
}

void TransformerStage::add_sample_squares(Context& ctx, int microbatch, SampleSquares& squares) {
  ctx.arena->set_phase(MemoryPhase::kBackward);
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  for (int part = parts() - 1; part >= 0; --part) {
    if (is_embedding(part)) {
      if (embedding_.weight->trainable()) {
        const Box& box = embedding_.weight->specs.front().box;
        slot.dembedded_all = embedding_.gather(ctx, scaled_back(ctx, slot.dembedded)).wait(ctx);
        embedding_sample_squares(ctx, microbatches_[static_cast<size_t>(microbatch)].tokens, slot.dembedded_all, box.start[0], box.extent[0],
                                 squares.values());
      }
      if (!trains_positions()) continue;
      const ForwardContext now = pass(microbatch);
      squares.add_rows(ctx, squares.residual_rows(), {positions_}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& gradients) {
        const int64_t first = now.first_row + begin;
        position_backward(ctx, slot.dembedded.rows(begin, count), first, sequence_, gradients.front(), now.documents.rows(first, count));
      });
    } else if (is_head(part)) {
      trireme::add_sample_squares(ctx, {NormGradient{&head_.norm, slot.head.x, slot.head.norm}}, squares);
      add(ctx, squares.values(), slot.head.samples.squares, squares.values());
    } else {
      blocks_[block_of(part)].weight_gradients(slot.blocks[block_of(part)],
                                               [&](const WeightGradients& layer) { trireme::add_sample_squares(ctx, layer, squares); });
    }
  }
}

void TransformerStage::add_tied_squares(Context& ctx, int microbatch, const Tensor& rows, SampleSquares& squares) const {
  const Tensor& dembedded = slots_[static_cast<size_t>(microbatch)].dembedded_all;
  Tensor wide = dembedded;
  if (wide.dtype() != rows.dtype()) {
    wide = Tensor::empty(ctx, dembedded.shape(), rows.dtype(), MemoryCategory::kWorkspace);
    copy(ctx, dembedded, wide);
  }
  for (int64_t sample = 0; sample < squares.samples(); ++sample)
    add_inner_product(ctx, wide.rows(sample * sequence_, sequence_), rows.rows(sample * sequence_, sequence_), 2, squares.value(sample));
}

/// Multiplies what W of a part reads by the factors of the samples. The head does so itself, with the gradient of its logits.
void TransformerStage::scale_samples(Context& ctx, int microbatch, int part) {
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  const ForwardContext now = pass(microbatch);
  SampleScaling scaling(ctx, sequence_, now.first_row, slot.factors);
  if (is_head(part)) return scaling.scale({NormGradient{&head_.norm, slot.head.x, slot.head.norm}});
  if (!is_embedding(part))
    return blocks_[block_of(part)].weight_gradients(slot.blocks[block_of(part)], [&](const WeightGradients& layer) { scaling.scale(layer); });
  if (slot.dembedded_all.defined()) scale_sample_rows(ctx, slot.dembedded_all, sequence_, 0, slot.factors);
  // Without sequence parallelism all rows are on every rank, and both are one tensor unless one of them is scaled.
  if (region_.gradients_partial() || embedding_scale_ != 1 || !slot.dembedded_all.defined())
    scale_sample_rows(ctx, slot.dembedded, sequence_, now.first_row, slot.factors);
}

void TransformerStage::backward(Context& ctx, int microbatch, int part) {
  TRIREME_CHECK(!clips_samples_, "samples are clipped between I and W");
  if (is_head(part)) return backward_input(ctx, microbatch, part);
  if (is_embedding(part)) return Stage::backward(ctx, microbatch, part);
  ctx.arena->set_phase(MemoryPhase::kBackward);
  wait_parameters(ctx, part);
  acquire_gradients(ctx, part);
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  slot.dx = blocks_[block_of(part)].backward(ctx, pass(microbatch), std::exchange(slot.dx, Tensor()), slot.blocks[block_of(part)]);
}

Tensor TransformerStage::recv_forward_buffer(Context& ctx, int microbatch) {
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  const int64_t rows = region_.local_rows(microbatches_[static_cast<size_t>(microbatch)].tokens.numel());
  slot.x = Tensor::empty(ctx, {rows, dims_.D}, dtype_, MemoryCategory::kActivations);
  return slot.x;
}

Tensor TransformerStage::take_forward_output(int microbatch) { return std::exchange(slots_[static_cast<size_t>(microbatch)].x, Tensor()); }

Tensor TransformerStage::recv_backward_buffer(Context& ctx, int microbatch) {
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  const int64_t rows = region_.local_rows(microbatches_[static_cast<size_t>(microbatch)].tokens.numel());
  slot.dx = Tensor::empty(ctx, {rows, dims_.D}, dtype_, MemoryCategory::kActivations);
  return slot.dx;
}

Tensor TransformerStage::take_backward_output(int microbatch) { return std::exchange(slots_[static_cast<size_t>(microbatch)].dx, Tensor()); }

}  // namespace trireme
