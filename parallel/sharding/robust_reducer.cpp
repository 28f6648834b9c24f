#include "parallel/sharding/robust_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/ops/aggregate.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/update.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/sharded_optimizer.h"

namespace trireme {

RobustReducer::RobustReducer(Context& ctx, std::vector<Unit*> units, const AggregationOptions& options, const CompressionOptions& compression,
                             DType gradient)
    : units_(std::move(units)),
      data_(*units_.front()->group().data),
      replicate_(*units_.front()->group().replicate),
      shards_(units_.front()->group().shards()),
      shard_(units_.front()->group().own_shard()),
      options_(options),
      compression_(compression),
      gradient_(gradient),
      copies_(units_.size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    TRIREME_CHECK(units_[u]->group() == units_.front()->group(), "units of several groups under one rule");
    if (!units_[u]->trainable()) continue;
    Copies& copies = copies_[u];
    copies.pieces = pieces_of(units_[u]->shard_numel());
    copies.own = copies.pieces[static_cast<size_t>(data_.rank())];
    for (const Range& piece : copies.pieces) copies.largest = std::max(copies.largest, piece.count);
    const Shape shape{data_.size(), copies.own.count};
    copies.gradients = Tensor::zeros(ctx, shape, gradient_, MemoryCategory::kGradients);
    copies.origin = Tensor::zeros(ctx, {copies.own.count}, gradient_, MemoryCategory::kGradients);
    if (options_.momentum > 0) copies.momenta = Tensor::zeros(ctx, shape, gradient_, MemoryCategory::kOptimizer);
    if (!compresses() || !compression_.error_feedback) continue;
    const int64_t owned = units_[u]->shard_numel();
    copies.own_shard = {shard_ * owned, owned};
    copies.error = Tensor::zeros(ctx, {owned * shards_}, gradient_, MemoryCategory::kOptimizer);
    copies.next_error = Tensor::zeros(ctx, {owned}, gradient_, MemoryCategory::kOptimizer);
  }
}

/// Data rank replica * S + shard owns part `replica` of the shard.
std::vector<RobustReducer::Range> RobustReducer::pieces_of(int64_t owned) const {
  const int replicas = data_.size() / shards_;
  const int64_t part = (owned + replicas - 1) / replicas;
  std::vector<Range> pieces;
  for (int replica = 0; replica < replicas; ++replica) {
    const int64_t begin = std::min(replica * part, owned);
    for (int shard = 0; shard < shards_; ++shard) pieces.push_back({shard * owned + begin, std::min(part, owned - begin)});
  }
  return pieces;
}

int RobustReducer::data_ranks() const { return data_.size(); }

void RobustReducer::begin_step(int64_t step) {
  step_ = step;
  for (Copies& copies : copies_) copies.empty = true;
}

double RobustReducer::sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const {
  const Copies& copies = copies_[static_cast<size_t>(unit)];
  if (kind == Reduction::Kind::kScatter && compresses()) {
    int64_t bytes = 0;
    for (int r = 0; r < data_.size(); ++r)
      if (r != data_.rank()) bytes += message(unit, copies.pieces[static_cast<size_t>(r)], false).bytes;
    return static_cast<double>(bytes);
  }
  const int64_t elements = kind == Reduction::Kind::kScatter ? shard_numel * ranks - copies.own.count : (ranks - 1) * copies.largest;
  return static_cast<double>(elements * size_of(gradient_));
}

std::vector<Reducer::State> RobustReducer::state(int unit) const {
  const Copies& copies = copies_[static_cast<size_t>(unit)];
  std::vector<State> states;
  if (copies.error.defined()) states.push_back({"scatter_error", copies.error, 0});
  if (!copies.momenta.defined()) return states;
  for (int worker = 0; worker < data_.size(); ++worker)
    states.push_back({"worker_momentum", copies.momenta.flat(worker * copies.own.count, copies.own.count), copies.own.begin, nullptr, worker});
  return states;
}

/// A unit's gradient with the pieces in the order of the data ranks.
Tensor RobustReducer::in_order(Context& ctx, const Copies& copies, const Tensor& whole) const {
  if (shards_ == 1 || shards_ == data_.size()) return whole;
  const Tensor ordered = Tensor::empty(ctx, {whole.numel()}, gradient_, MemoryCategory::kCommunication);
  int64_t offset = 0;
  for (const auto& [begin, count] : copies.pieces) {
    copy(ctx, whole.flat(begin, count), ordered.flat(offset, count));
    offset += count;
  }
  return ordered;
}

void RobustReducer::begin(Context& ctx, const Reduction& reduction) {
  Copies& copies = copies_[static_cast<size_t>(reduction.unit)];
  if (reduction.kind == Reduction::Kind::kReplicas) return;
  if (reduction.kind == Reduction::Kind::kTied) {
    if (copies.own.count > 0) copies.work = reduction.comm->all_reduce(ctx, copies.gradients, ReduceOp::kSum);
    return;
  }
  copies.shard = reduction.shard;
  if (compresses()) return begin_encoded(ctx, reduction);
  std::vector<int64_t> sent;
  for (const Range& piece : copies.pieces) sent.push_back(piece.count);
  const std::vector<int64_t> received(copies.pieces.size(), copies.own.count);
  const int64_t all = copies.gradients.numel();
  copies.sending = in_order(ctx, copies, reduction.whole);
  copies.arriving = copies.empty ? copies.gradients.flat(0, all) : Tensor::empty(ctx, {all}, gradient_, MemoryCategory::kCommunication);
  copies.work = data_.all_to_all_v(ctx, copies.sending, sent, copies.arriving, received);
}

UnitMessage RobustReducer::message(int unit, const Range& piece, bool warm_up) const {
  return gradient_message(*units_[static_cast<size_t>(unit)], compression_, piece.begin, piece.count, gradient_, warm_up);
}

void RobustReducer::begin_encoded(Context& ctx, const Reduction& reduction) {
  TRIREME_CHECK(!reduction.accumulate, "compressed gradients of unit ", reduction.unit, " cannot be accumulated in shards");
  Copies& copies = copies_[static_cast<size_t>(reduction.unit)];
  const bool warm_up = step_ < compression_.warmup_steps;
  std::vector<UnitMessage> messages;
  std::vector<int64_t> sent;
  for (const Range& piece : copies.pieces) sent.push_back(messages.emplace_back(message(reduction.unit, piece, warm_up)).bytes);
  const std::vector<int64_t> received(sent.size(), sent[static_cast<size_t>(data_.rank())]);
  const auto bytes = [&](int64_t count) { return Tensor::empty(ctx, {count}, DType::kU8, MemoryCategory::kCommunication); };
  copies.sending = bytes(std::reduce(sent.begin(), sent.end()));
  copies.arriving = bytes(std::reduce(received.begin(), received.end()));
  if (copies.error.defined()) copies.whole = reduction.whole;
  fill(ctx, 0, copies.sending);
  int64_t offset = 0;
  for (size_t r = 0; r < messages.size(); ++r) {
    const bool overwritten = copies.pieces[r].begin / std::max<int64_t>(copies.own_shard.count, 1) == shard_;
    for (const auto& [segment, encoding, begin, bytes_of_part] : messages[r].parts) {
      const Tensor gradient = slice_of(reduction.whole, segment, 0);
      const Tensor next = !copies.error.defined() ? Tensor() : overwritten ? slice_of(copies.next_error, segment, copies.own_shard.begin) : gradient;
      encode(ctx, encoding, draw(segment), gradient, slice_of(copies.error, segment, 0), copies.sending.flat(offset + begin, bytes_of_part), next);
    }
    offset += sent[r];
  }
  copies.work = data_.all_to_all_v(ctx, copies.sending, sent, copies.arriving, received);
}

/// Each message becomes a row of `gradients`.
void RobustReducer::decode_copies(Context& ctx, int unit) {
  const Copies& copies = copies_[static_cast<size_t>(unit)];
  const UnitMessage own = message(unit, copies.own, step_ < compression_.warmup_steps);
  fill(ctx, 0, copies.gradients);
  for (int64_t r = 0; r < data_.size(); ++r) {
    const Tensor row = copies.gradients.flat(r * copies.own.count, copies.own.count), received = copies.arriving.flat(r * own.bytes, own.bytes);
    for (const auto& [segment, encoding, begin, bytes] : own.parts)
      decode(ctx, encoding, draw(segment), received.flat(begin, bytes), slice_of(row, segment, copies.own.begin));
  }
}

void RobustReducer::end(Context& ctx, const Reduction& reduction) {
  Copies& copies = copies_[static_cast<size_t>(reduction.unit)];
  if (reduction.kind == Reduction::Kind::kReplicas) return;
  copies.work.wait(ctx);
  if (reduction.kind == Reduction::Kind::kTied) return;
  if (compresses())
    decode_copies(ctx, reduction.unit);
  else if (!std::exchange(copies.empty, false))
    accumulate(ctx, copies.arriving, copies.gradients.flat(0, copies.arriving.numel()));
  copies.sending.reset();
  copies.arriving.reset();
}

void RobustReducer::sum_partial(Context& ctx, Communicator& tensor, Communicator& kv) {
  for (const auto& [over, comm] : {std::pair(Partial::kTensor, &tensor), std::pair(Partial::kKv, &kv)}) {
    std::vector<Tensor> parts;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!copies_[u].exist()) continue;
      const Range own = copies_[u].own;
      for (const Unit::Segment& segment : units_[u]->segments(own.begin, own.begin + own.count)) {
        if (segment.spec->partial_over != over) continue;
        for (int row = 0; row < data_.size(); ++row)
          parts.push_back(copies_[u].gradients.flat(row * own.count + segment.flat_begin - own.begin, segment.count));
      }
    }
    sum_packed(ctx, *comm, parts, gradient_);
  }
}

void RobustReducer::add_squares(Context& ctx, const Tensor& sums) const {
  for (const Copies& copies : copies_)
    if (copies.exist()) add_row_squares(ctx, copies.gradients, 0, copies.own.count, sums);
}

void RobustReducer::apply_momentum(Context& ctx, std::span<const int> rows) {
  rows_.assign(rows.begin(), rows.end());
  for (const Copies& copies : copies_) {
    if (!copies.momenta.defined()) continue;
    for (const int row : rows) {
      const int64_t begin = row * copies.own.count;
      blend(ctx, options_.momentum, copies.momenta.flat(begin, copies.own.count), copies.gradients.flat(begin, copies.own.count));
    }
  }
}

void RobustReducer::find_origins(Context& ctx, std::span<const int> rows) {
  for (const Copies& copies : copies_)
    if (copies.exist()) median(ctx, copies.gradients, rows, copies.origin);
}

void RobustReducer::add_products(Context& ctx, std::span<const int> rows, const Tensor& products) const {
  for (size_t u = 0; u < units_.size(); ++u) {
    const Copies& copies = copies_[u];
    if (!copies.exist()) continue;
    for (const Unit::Segment& segment : counted_segments(*units_[u], copies.own.begin, copies.own.begin + copies.own.count))
      add_centered_products(ctx, copies.gradients, rows, copies.origin, segment.flat_begin - copies.own.begin, segment.count, products);
  }
}

void RobustReducer::combine(Context& ctx, std::span<const int> rows, const Combination& combination) {
  std::vector<int> chosen;
  for (const int i : combination.chosen) chosen.push_back(rows[static_cast<size_t>(i)]);
  const int replicas = replicate_.size();
  for (Copies& copies : copies_) {
    if (!copies.exist()) continue;
    const Tensor& result = copies.origin;
    switch (combination.kind) {
      case Combination::Kind::kTrimmedMean: trimmed_mean(ctx, copies.gradients, rows, combination.count, result); break;
      case Combination::Kind::kMeanNearMedian: mean_near_median(ctx, copies.gradients, chosen, combination.count, result); break;
      case Combination::Kind::kWeighted: weighted_mean(ctx, copies.gradients, rows, combination.weights, result, result); break;
    }
    if (replicas == 1) {
      copy(ctx, result, copies.shard);
      continue;
    }
    const Tensor padded = Tensor::zeros(ctx, {copies.largest}, gradient_, MemoryCategory::kCommunication);
    const Tensor gathered = Tensor::empty(ctx, {copies.largest * replicas}, gradient_, MemoryCategory::kCommunication);
    copy(ctx, result, padded.flat(0, copies.own.count));
    replicate_.all_gather(ctx, padded, gathered).wait(ctx);
    copy(ctx, gathered.flat(0, copies.shard.numel()), copies.shard);
  }
}

void RobustReducer::reject(Context& ctx) {
  for (const Copies& copies : copies_)
    if (copies.exist()) fill(ctx, std::numeric_limits<double>::quiet_NaN(), copies.shard);
}

void RobustReducer::keep_errors(Context& ctx, Copies& copies, const Tensor& scalars) const {
  const auto [begin, count] = copies.own_shard;
  const int64_t end = begin + count, rest = copies.error.numel() - end;
  if (std::ranges::find(rows_, data_.rank()) != rows_.end()) {
    copy_accepted(ctx, scalars, copies.whole.flat(0, begin), copies.error.flat(0, begin));
    copy_accepted(ctx, scalars, copies.next_error, copies.error.flat(begin, count));
    copy_accepted(ctx, scalars, copies.whole.flat(end, rest), copies.error.flat(end, rest));
  }
  copies.whole.reset();
}

void RobustReducer::settle(Context& ctx, int unit, const Tensor& scalars) {
  Copies& copies = copies_[static_cast<size_t>(unit)];
  if (copies.whole.defined()) keep_errors(ctx, copies, scalars);
  if (!copies.momenta.defined()) return;
  for (const int row : rows_) {
    const int64_t begin = row * copies.own.count, count = copies.own.count;
    copy_accepted(ctx, scalars, copies.gradients.flat(begin, count), copies.momenta.flat(begin, count));
  }
}

namespace {

/// The sum over the ranks; zeros on the meta device.
std::vector<double> summed(Context& ctx, Communicator& step, const Tensor& sums) {
  step.all_reduce(ctx, sums, ReduceOp::kSum).wait(ctx);
  if (ctx.device == Device::kMeta) return std::vector<double>(static_cast<size_t>(sums.numel()));
  return {sums.data<double>(), sums.data<double>() + sums.numel()};
}

/// What aggregate() returns, from the squared distances of `rows`.
std::vector<double> relative_distances(int64_t n, const std::vector<int>& rows, const std::vector<double>& squares) {
  std::vector<double> sorted = squares;
  std::ranges::sort(sorted);
  const double median = sorted.empty() ? 0 : std::sqrt(sorted[(sorted.size() - 1) / 2]);
  std::vector<double> distances(static_cast<size_t>(n), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < rows.size(); ++i) {
    const double ratio = squares[i] == 0 ? 0 : std::sqrt(squares[i]) / median;
    distances[static_cast<size_t>(rows[i])] = std::min(ratio, std::numeric_limits<double>::max());  // finite even if most gradients are equal
  }
  return distances;
}

}  // namespace

std::vector<double> aggregate(Context& ctx, std::span<RobustReducer* const> reducers, Communicator& step, int data_rank, bool absent) {
  // The squares of distances between gradients of at most this squared norm are finite.
  constexpr double kLargestSquares = 1e300;
  const AggregationOptions& options = reducers.front()->options();
  const int n = reducers.front()->data_ranks();
  const Tensor sums = Tensor::zeros(ctx, {n}, DType::kF64, MemoryCategory::kWorkspace);
  for (const RobustReducer* const reducer : reducers) reducer->add_squares(ctx, sums);
  if (absent) fill(ctx, std::numeric_limits<double>::infinity(), sums.flat(data_rank, 1));
  const std::vector<double> squares = summed(ctx, step, sums);
  std::vector<int> rows;
  for (int i = 0; i < n; ++i)
    if (squares[static_cast<size_t>(i)] <= kLargestSquares) rows.push_back(i);
  const int64_t taking_part = std::ssize(rows), wrong = options.byzantine - (n - taking_part);
  if (wrong < 0) {
    for (RobustReducer* const reducer : reducers) reducer->reject(ctx);
    return relative_distances(n, rows, std::vector<double>(rows.size(), 0));
  }
  for (RobustReducer* const reducer : reducers) {
    reducer->apply_momentum(ctx, rows);
    reducer->find_origins(ctx, rows);
  }
  const bool all = needs_all_products(options.rule);
  const Tensor products = Tensor::zeros(ctx, all ? Shape{taking_part, taking_part} : Shape{taking_part}, DType::kF64, MemoryCategory::kWorkspace);
  for (const RobustReducer* const reducer : reducers) reducer->add_products(ctx, rows, products);
  const std::vector<double> values = summed(ctx, step, products);
  std::vector<double> distances;  // squared
  for (int64_t i = 0; i < taking_part; ++i) distances.push_back(values[static_cast<size_t>(all ? i * (taking_part + 1) : i)]);
  // A forecast needs no decision: all combinations take the same memory.
  const Combination combination = ctx.device == Device::kMeta
                                      ? Combination{Combination::Kind::kTrimmedMean, {}, 0, {}}
                                      : combination_of(options, taking_part, wrong, all ? InnerProducts(taking_part, values) : InnerProducts(0, {}));
  for (RobustReducer* const reducer : reducers) reducer->combine(ctx, rows, combination);
  return relative_distances(n, rows, distances);
}

}  // namespace trireme
