#include "parallel/sharding/low_rank_reducer.h"

#include <algorithm>
#include <utility>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/low_rank.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/update.h"

namespace trireme {

bool has_low_rank(const ParamSpec& spec, int64_t rank) {
  const auto [rows, columns] = spec.box.extent;
  return is_compressed(spec) && 2 * rank * (rows + columns) < rows * columns;
}

int64_t summed_elements(const ParamSpec& spec, int64_t rank) {
  return has_low_rank(spec, rank) ? rank * (spec.box.extent[0] + spec.box.extent[1]) : spec.box.numel();
}

void draw_basis(Context& ctx, uint64_t seed, const ParamSpec& spec, const Tensor& basis) {
  fill_normal(ctx, random_key(seed, "compression:" + spec.name), 1, spec.shape[1], 0, spec.box.start[1], basis);
}

LowRankReducer::LowRankReducer(Context& ctx, std::vector<Unit*> units, const CompressionOptions& options, DType wire, DType gradient)
    : units_(std::move(units)), options_(options), gradient_(gradient), plain_(wire), sums_(units_.size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (data_of(static_cast<int>(u)).size() == 1 || !units_[u]->trainable()) continue;  // nothing is sent
    Sum& sum = sums_[u];
    const int64_t owned = units_[u]->shard_numel(), all = owned * units_[u]->group().shards();
    sum.own = {units_[u]->owned_begin(), owned};
    add_segments(sum, *units_[u]);
    const auto zeros = [&](int64_t count) { return Tensor::zeros(ctx, {count}, gradient_, MemoryCategory::kOptimizer); };
    sum.basis = zeros(sum.basis_numel);
    sum.next_basis = zeros(sum.basis_numel);
    for (const Matrix& matrix : sum.matrices) draw_basis(ctx, options_.seed, *matrix.spec, right_of(sum.basis, matrix));
    int64_t end = 0;
    for (const Matrix& matrix : sum.matrices) {
      if (matrix.range.begin > end) sum.rest.push_back({end, matrix.range.begin - end});
      end = matrix.range.begin + matrix.range.count;
    }
    if (all > end) sum.rest.push_back({end, all - end});
    if (!options_.error_feedback) continue;
    sum.error = zeros(all);
    sum.next_error = zeros(owned);
  }
}

void LowRankReducer::add_segments(Sum& sum, const Unit& unit) const {
  for (const Unit::Segment& segment : unit.segments(0, unit.numel())) {
    const ParamSpec& spec = *segment.spec;
    const Range range{segment.flat_begin, segment.matrix_range().count()};
    if (!has_low_rank(spec, options_.rank)) {
      if (range.count > 0) sum.plain.push_back(range);
      continue;
    }
    const auto [rows, columns] = spec.box.extent;
    sum.matrices.push_back({&spec, range, rows, columns, sum.message_numel, sum.basis_numel});
    sum.message_numel += rows * options_.rank;
    sum.basis_numel += options_.rank * columns;
  }
  for (const Range& range : sum.plain) sum.message_numel += range.count;
}

Tensor LowRankReducer::left_of(const Sum& sum, const Matrix& matrix) const {
  return sum.message.flat_view(matrix.left, {matrix.rows, options_.rank});
}

Tensor LowRankReducer::right_of(const Tensor& basis, const Matrix& matrix) const {
  return basis.flat_view(matrix.right, {options_.rank, matrix.columns});
}

std::vector<Reducer::State> LowRankReducer::state(int unit) const {
  const Sum& sum = sums_[static_cast<size_t>(unit)];
  std::vector<State> states;
  if (sum.error.defined()) states.push_back({"scatter_error", sum.error, 0});
  for (const Matrix& matrix : sum.matrices) states.push_back({"basis", right_of(sum.basis, matrix), 0, matrix.spec});
  return states;
}

/// A forecast runs the first steps on the meta device. They must not be those of the warm-up, which need less memory than the later ones.
bool LowRankReducer::compresses(const Context& ctx, const Reduction& reduction) const {
  const bool warms_up = step_ < options_.warmup_steps && ctx.device != Device::kMeta;
  return reduction.kind != Reduction::Kind::kTied && data_of(reduction.unit).size() > 1 && !warms_up;
}

double LowRankReducer::sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const {
  const int data = data_of(unit).size();
  if (data == 1) return plain_.sent_bytes(kind, unit, shard_numel, ranks);
  if (kind == Reduction::Kind::kReplicas) return 0;
  const Sum& sum = sums_[static_cast<size_t>(unit)];
  return static_cast<double>((sum.message_numel + sum.basis_numel) * size_of(gradient_)) * 2 * (data - 1) / data;
}

void LowRankReducer::begin(Context& ctx, const Reduction& reduction) {
  if (!compresses(ctx, reduction)) return plain_.start(ctx, reduction);
  if (reduction.kind == Reduction::Kind::kReplicas) return;  // summed with kScatter
  TRIREME_CHECK(!reduction.accumulate, "compressed gradients of unit ", reduction.unit, " cannot be accumulated in shards");
  Sum& sum = sums_[static_cast<size_t>(reduction.unit)];
  sum.whole = reduction.whole;
  if (options_.error_feedback) accumulate(ctx, sum.error, sum.whole);
  sum.message = Tensor::empty(ctx, {sum.message_numel}, gradient_, MemoryCategory::kCommunication);
  int64_t offset = 0;
  for (const Matrix& matrix : sum.matrices) {
    linear_forward(ctx, sum.whole.flat_view(matrix.range.begin, {matrix.rows, matrix.columns}), right_of(sum.basis, matrix), Tensor(),
                   left_of(sum, matrix));
    offset += matrix.rows * options_.rank;
  }
  for (const Range& range : sum.plain) {
    copy(ctx, sum.whole.flat(range.begin, range.count), sum.message.flat(offset, range.count));
    offset += range.count;
  }
  sum.work = data_of(reduction.unit).all_reduce(ctx, sum.message, ReduceOp::kSum);
}

void LowRankReducer::end(Context& ctx, const Reduction& reduction) {
  if (!compresses(ctx, reduction)) return plain_.finish(ctx, reduction.unit);
  if (reduction.kind == Reduction::Kind::kReplicas) return;
  Sum& sum = sums_[static_cast<size_t>(reduction.unit)];
  sum.work.wait(ctx);
  for (const Matrix& matrix : sum.matrices) {
    const Tensor m = sum.whole.flat_view(matrix.range.begin, {matrix.rows, matrix.columns}), p = left_of(sum, matrix);
    const Tensor q = right_of(sum.next_basis, matrix);
    orthonormalise(ctx, p);
    linear_backward_weight(ctx, p, m, q, false);
    if (options_.error_feedback) add_product(ctx, -1, p, q, 0, sum.whole.flat(matrix.range.begin, matrix.range.count));
  }
  if (sum.basis_numel > 0) data_of(reduction.unit).all_reduce(ctx, sum.next_basis, ReduceOp::kSum).wait(ctx);
  if (options_.error_feedback) {
    for (const Range& range : sum.rest) fill(ctx, 0, sum.whole.flat(range.begin, range.count));  // sent in full
    copy(ctx, sum.whole.flat(sum.own.begin, sum.own.count), sum.next_error);                     // where the shard may be
  }
  fill(ctx, 0, reduction.shard);
  const auto owned = [&](const Range& range) {
    const int64_t begin = std::max(range.begin, sum.own.begin), end = std::min(range.begin + range.count, sum.own.begin + sum.own.count);
    return Range{begin, std::max<int64_t>(0, end - begin)};
  };
  int64_t offset = 0;
  for (const Matrix& matrix : sum.matrices) {
    if (const Range part = owned(matrix.range); part.count > 0)
      add_product(ctx, 1, left_of(sum, matrix), right_of(sum.next_basis, matrix), part.begin - matrix.range.begin,
                  reduction.shard.flat(part.begin - sum.own.begin, part.count));
    offset += matrix.rows * options_.rank;
  }
  for (const Range& range : sum.plain) {
    if (const Range part = owned(range); part.count > 0)
      copy(ctx, sum.message.flat(offset + part.begin - range.begin, part.count), reduction.shard.flat(part.begin - sum.own.begin, part.count));
    offset += range.count;
  }
  sum.message.reset();
}

void LowRankReducer::settle(Context& ctx, int unit, const Tensor& scalars) {
  Sum& sum = sums_[static_cast<size_t>(unit)];
  const Tensor whole = std::exchange(sum.whole, Tensor());
  if (!whole.defined()) return;
  for (const Matrix& matrix : sum.matrices) copy_nonzero_rows(ctx, scalars, right_of(sum.next_basis, matrix), right_of(sum.basis, matrix));
  if (!options_.error_feedback) return;
  const int64_t end = sum.own.begin + sum.own.count;
  const auto keep = [&](int64_t begin, int64_t count, const Tensor& next) { copy_accepted(ctx, scalars, next, sum.error.flat(begin, count)); };
  keep(0, sum.own.begin, whole.flat(0, sum.own.begin));
  keep(sum.own.begin, sum.own.count, sum.next_error);
  keep(end, whole.numel() - end, whole.flat(end, whole.numel() - end));
}

}  // namespace trireme
