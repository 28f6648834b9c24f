#include "trainer/islands/local_updates.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"

namespace trireme {

int64_t Rounds::end_of(int64_t step) const {
  const int64_t end = (step + round - 1) / round * round;
  return last > 0 && step <= last ? std::min(end, last) : end;
}

bool Rounds::is_due(int64_t step, int64_t every) const { return every > 0 && ends_after(step) && step / every > end_before(step) / every; }

std::optional<int64_t> Rounds::fragment_after(int64_t step) const {
  const int64_t part = round / fragments;
  if (step <= 0 || step % part != 0) return {};
  return (step / part - 1) % fragments;
}

std::optional<int64_t> Rounds::sent_after(int64_t step) const {
  if (delay == 0 || step == last) return {};
  return fragment_after(step + delay);
}

Rounds rounds_of(const TrainingConfig& training, int64_t last) {
  if (is_asynchronous(training)) return {training.asynchronous.steps, last};
  if (!training.local.steps) return {.last = last};
  return {*training.local.steps, last, training.local.fragments, training.local.delay};
}

int64_t fragment_of(const std::string& parameter, int64_t fragments) { return in_block(parameter).value_or(InBlock{}).block % fragments; }

LocalUpdates::LocalUpdates(Context& ctx, Mesh& mesh, const Stages& stages, const SharedShards& shared, const LocalConfig& config, DType master)
    : mesh_(mesh),
      stages_(stages),
      step_{config.outer_learning_rate, config.outer_momentum, mesh.shape.islands, config.blend},
      fragments_(config.fragments),
      shared_(shared) {
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<Tensor>& units = momentum_.emplace_back();
    for (size_t unit = 0; unit < stages[s]->params().units().size(); ++unit) {
      Tensor& momentum = units.emplace_back();
      if (!stages[s]->params().units()[unit]->trainable()) continue;
      momentum = Tensor::zeros(ctx, stages[s]->params().master(static_cast<int>(unit)).shape(), master, MemoryCategory::kOptimizer);
      add_pieces(s, unit);
    }
  }
  std::ranges::stable_sort(pieces_, {}, &Piece::fragment);
  int64_t largest = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (i > 0 && pieces_[i].fragment == pieces_[i - 1].fragment) pieces_[i].place = pieces_[i - 1].place + pieces_[i - 1].end - pieces_[i - 1].begin;
    largest = std::max(largest, pieces_[i].place + pieces_[i].end - pieces_[i].begin);
  }
  if (config.delay > 0) in_flight_ = Tensor::zeros(ctx, {largest}, master, MemoryCategory::kCommunication);
  sums_ = Tensor::zeros(ctx, {3}, DType::kF64, MemoryCategory::kWorkspace);
  for (int64_t i = 0; i < 3; ++i) figures_.push_back(sums_.flat(i, 1));
}

/// Cuts the owned shard of a unit where the fragment of its parameters changes. Padding belongs to what is before it.
void LocalUpdates::add_pieces(size_t stage, size_t unit) {
  const ParamStore& params = stages_[stage]->params();
  const Unit& of = *params.units()[unit];
  const int64_t numel = params.master(static_cast<int>(unit)).numel();
  const size_t first = pieces_.size();
  for (const Unit::Segment& segment : of.owned_segments()) {
    const int64_t fragment = fragment_of(segment.spec->name, fragments_), begin = segment.flat_begin - of.owned_begin();
    if (pieces_.size() > first && pieces_.back().fragment == fragment) continue;
    if (pieces_.size() > first) pieces_.back().end = begin;
    pieces_.push_back({stage, unit, pieces_.size() > first ? begin : 0, numel, fragment});
  }
}

void LocalUpdates::start_run(Context& ctx) {
  for (const std::vector<Tensor>& units : momentum_)
    for (const Tensor& one : units)
      if (one.defined()) fill(ctx, 0, one);
}

/// Adds the squares of the elements of a piece that count.
void LocalUpdates::add_squares(Context& ctx, const Piece& piece, const Tensor& values, const Tensor& sum) const {
  const ParamStore& params = stages_[piece.stage]->params();
  const Unit& unit = *params.units()[piece.unit];
  const int64_t first = unit.owned_begin() + piece.begin;  // in the flat buffer of the unit
  std::vector<Tensor> counted;
  for (const Unit::Segment& segment : counted_segments(unit))
    if (segment.flat_begin >= first && segment.flat_begin < first + piece.end - piece.begin)
      counted.push_back(values.flat(segment.flat_begin - first, segment.count));
  sum_of_squares(ctx, counted, sum);
}

void LocalUpdates::begin(Context& ctx, Piece& piece) {
  const Tensor weights = weights_of(piece);
  piece.sum = in_flight_.defined() ? in_flight_.flat(piece.place, weights.numel())
                                   : Tensor::empty(ctx, weights.shape(), weights.dtype(), MemoryCategory::kCommunication);
  copy(ctx, weights, piece.sum);
  piece.work = mesh_.islands->all_reduce(ctx, piece.sum, ReduceOp::kSum);
}

void LocalUpdates::finish(Context& ctx, Piece& piece, const OuterStep& step, bool counts) {
  piece.work.wait(ctx);
  const Tensor theta = part(piece, shared_.of(piece.stage, piece.unit)), momentum = part(piece, momentum_[piece.stage][piece.unit]);
  const Tensor drift = Tensor::empty(ctx, theta.shape(), theta.dtype(), MemoryCategory::kWorkspace);
  outer_step(ctx, step, piece.sum, weights_of(piece), theta, momentum, drift);
  if (counts) {
    const Tensor* const squares[] = {&piece.sum, &drift, &theta};
    for (size_t k = 0; k < figures_.size(); ++k) add_squares(ctx, piece, *squares[k], figures_[k]);
  }
  stages_[piece.stage]->params().mark_stale(static_cast<int>(piece.unit));
  sent_bytes_ += 2.0 * (step_.islands - 1) / step_.islands * static_cast<double>(piece.sum.bytes());
  piece.sum = {};
}

/// The outer steps of one fragment or, with nullopt, of all. Sums that have not begun begin now.
void LocalUpdates::synchronise(Context& ctx, std::optional<int64_t> fragment, const OuterStep& step, bool counts) {
  fill(ctx, 0, sums_);
  sent_bytes_ = 0;
  for (Piece& piece : pieces_) {
    if (fragment && piece.fragment != *fragment) continue;
    if (!piece.is_sent()) begin(ctx, piece);
    finish(ctx, piece, step, counts);
  }
  mesh_.world.all_reduce(ctx, sums_, ReduceOp::kSum).wait(ctx);
}

void LocalUpdates::synchronise_all(Context& ctx, bool counts) {
  for (Piece& piece : pieces_) {  // what is in flight is of no use: the weights have changed since
    piece.work.wait(ctx);
    piece.sum = {};
  }
  OuterStep step = step_;
  step.blend = 1;
  synchronise(ctx, {}, step, counts);
}

bool LocalUpdates::after_step(Context& ctx, const Rounds& rounds, int64_t step, bool counts) {
  if (step == rounds.last) {
    synchronise_all(ctx, counts);
    return true;
  }
  const std::optional<int64_t> due = rounds.fragment_after(step), sent = rounds.sent_after(step);
  if (sent)
    for (Piece& piece : pieces_)
      if (piece.fragment == *sent) begin(ctx, piece);
  if (due) synchronise(ctx, due, step_, counts);
  return due.has_value();
}

OuterResult LocalUpdates::result(const std::vector<double>& figures, double bytes) const {
  return {std::sqrt(figures[0] / step_.islands), bytes, figures[2] > 0 ? std::sqrt(figures[1] / figures[2]) : 0};
}

double LocalUpdates::round_bytes() const {
  double bytes = 0;
  for (const Piece& piece : pieces_) bytes += static_cast<double>(weights_of(piece).bytes());
  return 2.0 * (step_.islands - 1) / step_.islands * bytes;
}

}  // namespace trireme
