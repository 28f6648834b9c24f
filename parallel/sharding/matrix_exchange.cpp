#include "parallel/sharding/matrix_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops/columns.h"
#include "kernels/ops/elementwise.h"

namespace trireme {
namespace {

using Counts = std::vector<int64_t>;

int64_t sum_of(const Counts& counts) { return std::reduce(counts.begin(), counts.end()); }

Tensor empty_like(Context& ctx, const Tensor& other, int64_t count) { return Tensor::empty(ctx, {count}, other.dtype(), MemoryCategory::kWorkspace); }

Tensor exchanged(Context& ctx, Communicator& comm, const Tensor& in, const Counts& send, const Counts& receive) {
  const Tensor out = empty_like(ctx, in, sum_of(receive));
  comm.all_to_all_v(ctx, in, send, out, receive).wait(ctx);
  return out;
}

bool has_whole_rows(const Box& box, const Tensor& matrix) { return box.extent[1] == matrix.shape()[1]; }

void place(Context& ctx, const Tensor& from, const Box& box, const Tensor& matrix) {
  if (has_whole_rows(box, matrix)) return copy(ctx, from, matrix.flat(box.start[0] * box.extent[1], box.numel()));
  copy_columns(ctx, from.flat_view(0, {box.extent[0], box.extent[1]}), 0, matrix, box.start[1], box.extent[1]);
}

void take(Context& ctx, const Tensor& matrix, const Box& box, const Tensor& to) {
  if (has_whole_rows(box, matrix)) return copy(ctx, matrix.flat(box.start[0] * box.extent[1], box.numel()), to);
  copy_columns(ctx, matrix, box.start[1], to.flat_view(0, {box.extent[0], box.extent[1]}), 0, box.extent[1]);
}

}  // namespace

std::vector<int> deal_by_cost(std::span<const double> costs, int owners) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return costs[i]; });
  std::vector<double> load(static_cast<size_t>(owners), 0);
  std::vector<int> owner(costs.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += costs[i];
    owner[i] = static_cast<int>(least - load.begin());
  }
  return owner;
}

MatrixExchange::Range MatrixExchange::Matrix::in_shard(int rank) const {
  const auto clamped = [&](int64_t flat) { return std::clamp<int64_t>(flat - flat_begin, 0, spec->numel()); };
  const int64_t begin = clamped(rank * shard_numel);
  return {begin, clamped((rank + 1) * shard_numel) - begin};
}

MatrixExchange::MatrixExchange(const std::vector<Unit*>& units, Communicator& tensor, double (*cost)(const std::array<int64_t, 2>& shape))
    : shard_(*units.front()->group().shard), tensor_(tensor) {
  std::vector<int> unit_of;
  std::vector<double> costs;
  for (size_t u = 0; u < units.size(); ++u) {
    TRIREME_CHECK(units[u]->group() == units.front()->group(), units[u]->name(), " is of another shard group");
    for (const Unit::Segment& whole : units[u]->segments(0, units[u]->numel())) {
      if (!whole.spec->is_hidden_matrix) continue;
      TRIREME_CHECK(whole.spec->local == whole.spec->box.extent, whole.spec->name, ": a matrix with rows of padding");
      matrices_.push_back({whole.spec, whole.flat_begin, units[u]->shard_numel(), 0, 0});
      unit_of.push_back(static_cast<int>(u));
      costs.push_back(cost(whole.spec->shape));
    }
  }
  const std::vector<int> owner = deal_by_cost(costs, shard_.size() * tensor_.size());
  for (size_t i = 0; i < owner.size(); ++i) matrices_[i].shard = owner[i] / tensor_.size(), matrices_[i].tensor = owner[i] % tensor_.size();
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return matrices_[i].shard; });
  std::vector<Matrix> sorted;
  int64_t begin = 0;
  for (const size_t i : order) {
    const Matrix& matrix = sorted.emplace_back(matrices_[i]);
    const auto [first, count] = matrix.in_shard(shard_.rank());
    if (count == 0) continue;
    pieces_.push_back({unit_of[i], {matrix.spec, matrix.flat_begin + first, first, count}, begin});
    begin += count;
  }
  matrices_ = std::move(sorted);
}

int64_t MatrixExchange::elements() const { return pieces_.empty() ? 0 : pieces_.back().begin + pieces_.back().segment.count; }

/// Calls body(shard rank, part, range) for the pieces of the parts that this shard rank collects, in the order of an exchange.
template <class Body>
void MatrixExchange::each_piece(const Body& body) const {
  for (int rank = 0; rank < shard_.size(); ++rank) {
    size_t part = 0;
    for (const Matrix& matrix : matrices_)
      if (matrix.shard == shard_.rank()) body(static_cast<size_t>(rank), part++, matrix.in_shard(rank));
  }
}

Tensor MatrixExchange::transform(Context& ctx, const Tensor& pieces, const Change& change) const {
  Counts kept(static_cast<size_t>(shard_.size())), collected(kept.size());  // elements of this rank's pieces by owner, of its parts by shard
  for (const Matrix& matrix : matrices_) kept[static_cast<size_t>(matrix.shard)] += matrix.in_shard(shard_.rank()).count;
  each_piece([&](size_t rank, size_t /*part*/, const Range& range) { collected[rank] += range.count; });
  Tensor packed = exchanged(ctx, shard_, pieces, kept, collected);
  std::vector<Tensor> parts;
  for (const Matrix& matrix : matrices_)
    if (matrix.shard == shard_.rank()) parts.push_back(empty_like(ctx, pieces, matrix.spec->numel()));
  const auto each_copy = [&](const auto& copy_piece) {
    int64_t begin = 0;
    each_piece([&](size_t /*rank*/, size_t part, const Range& range) {
      copy_piece(packed.flat(begin, range.count), parts[part].flat(range.begin, range.count));
      begin += range.count;
    });
  };
  each_copy([&](const Tensor& piece, const Tensor& part) { copy(ctx, piece, part); });
  packed.reset();
  transform_parts(ctx, parts, pieces, change);
  packed = empty_like(ctx, pieces, sum_of(collected));
  each_copy([&](const Tensor& piece, const Tensor& part) { copy(ctx, part, piece); });
  parts.clear();
  return exchanged(ctx, shard_, packed, collected, kept);
}

/// `parts`: this tensor rank's parts of the matrices whose owners have its shard rank. They are changed in place.
void MatrixExchange::transform_parts(Context& ctx, const std::vector<Tensor>& parts, const Tensor& like, const Change& change) const {
  const auto ranks = static_cast<size_t>(tensor_.size());
  std::vector<const Matrix*> collected;
  for (const Matrix& matrix : matrices_)
    if (matrix.shard == shard_.rank()) collected.push_back(&matrix);
  const auto is_own = [&](const Matrix& matrix) { return matrix.tensor == tensor_.rank(); };
  // There: every part once, from its primary copy. Back: to every rank that has the part.
  Counts sent(ranks), received(ranks), sent_back(ranks), received_back(ranks);
  for (const Matrix* matrix : collected) {
    const auto owner = static_cast<size_t>(matrix->tensor);
    if (matrix->spec->is_primary_copy) sent[owner] += matrix->spec->numel();
    received_back[owner] += matrix->spec->numel();
    for (size_t rank = 0; is_own(*matrix) && rank < ranks; ++rank) {
      const ParamSpec there = on_rank(*matrix->spec, {static_cast<int>(rank), tensor_.size()});
      if (there.is_primary_copy) received[rank] += there.numel();
      sent_back[rank] += there.numel();
    }
  }
  std::vector<Tensor> whole;
  for (const Matrix* matrix : collected)
    if (is_own(*matrix))
      whole.push_back(
          empty_like(ctx, like, matrix->spec->shape[0] * matrix->spec->shape[1]).flat_view(0, {matrix->spec->shape[0], matrix->spec->shape[1]}));
  // The parts of the own matrices, by rank, in a packed tensor.
  const auto each_part = [&](bool primary_only, const Tensor& packed, const auto& body) {
    int64_t begin = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      size_t own = 0;
      for (const Matrix* matrix : collected) {
        if (!is_own(*matrix)) continue;
        const Tensor& to = whole[own++];
        const ParamSpec there = on_rank(*matrix->spec, {static_cast<int>(rank), tensor_.size()});
        if (primary_only && !there.is_primary_copy) continue;
        body(packed.flat(begin, there.numel()), there.box, to);
        begin += there.numel();
      }
    }
  };
  // This rank's parts, by owner, in a packed tensor.
  const auto each_own_part = [&](bool primary_only, const Tensor& packed, const auto& body) {
    int64_t begin = 0;
    for (size_t owner = 0; owner < ranks; ++owner) {
      for (size_t i = 0; i < collected.size(); ++i) {
        if (static_cast<size_t>(collected[i]->tensor) != owner || (primary_only && !collected[i]->spec->is_primary_copy)) continue;
        body(packed.flat(begin, parts[i].numel()), parts[i]);
        begin += parts[i].numel();
      }
    }
  };
  Tensor packed = empty_like(ctx, like, sum_of(sent));
  each_own_part(true, packed, [&](const Tensor& to, const Tensor& part) { copy(ctx, part, to); });
  packed = exchanged(ctx, tensor_, packed, sent, received);
  each_part(true, packed, [&](const Tensor& from, const Box& box, const Tensor& matrix) { place(ctx, from, box, matrix); });
  packed.reset();
  for (size_t own = 0, i = 0; i < collected.size(); ++i)
    if (is_own(*collected[i])) change(collected[i]->spec->shape, whole[own++]);
  packed = empty_like(ctx, like, sum_of(sent_back));
  each_part(false, packed, [&](const Tensor& to, const Box& box, const Tensor& matrix) { take(ctx, matrix, box, to); });
  whole.clear();
  packed = exchanged(ctx, tensor_, packed, sent_back, received_back);
  each_own_part(false, packed, [&](const Tensor& from, const Tensor& part) { copy(ctx, from, part); });
}

}  // namespace trireme
