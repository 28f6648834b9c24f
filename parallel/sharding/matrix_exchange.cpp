#include "parallel/sharding/matrix_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops/columns.h"
#include "kernels/ops/elementwise.h"

namespace trireme {
namespace {

using Counts = std::vector<int64_t>;

int64_t sum_of(const Counts& counts) { return std::reduce(counts.begin(), counts.end()); }

Tensor workspace(Context& ctx, int64_t count, DType dtype) { return Tensor::empty(ctx, {count}, dtype, MemoryCategory::kWorkspace); }

/// The parts of `in` for all ranks, exchanged. A group of one rank has what it sends.
Tensor exchanged(Context& ctx, Communicator& comm, const Tensor& in, const Counts& send, const Counts& receive) {
  if (comm.size() == 1) return in;
  const Tensor out = workspace(ctx, sum_of(receive), in.dtype());
  comm.all_to_all_v(ctx, in, send, out, receive).wait(ctx);
  return out;
}

Tensor shaped(const Tensor& matrix, const MatrixShape& shape) { return matrix.flat_view(0, {shape[0], shape[1]}); }

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

DealtMatrices deal(std::span<const MatrixShape> shapes, double (*cost)(const MatrixShape& shape), int shards, int tensor) {
  std::vector<double> costs, parts(static_cast<size_t>(shards)), matrices(static_cast<size_t>(shards * tensor));
  for (const MatrixShape& shape : shapes) costs.push_back(cost(shape));
  DealtMatrices dealt{.owner = deal_by_cost(costs, shards * tensor)};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto count = static_cast<double>(shapes[i][0] * shapes[i][1]);
    parts[static_cast<size_t>(dealt.owner[i] / tensor)] += count / tensor;
    matrices[static_cast<size_t>(dealt.owner[i])] += count;
  }
  dealt.most_parts = std::ranges::max(parts);
  dealt.most_matrices = std::ranges::max(matrices);
  return dealt;
}

MatrixExchange::Range MatrixExchange::Matrix::in_shard(int rank) const {
  const auto clamped = [&](int64_t flat) { return std::clamp<int64_t>(flat - flat_begin, 0, spec->numel()); };
  const int64_t begin = clamped(rank * shard_numel);
  return {begin, clamped((rank + 1) * shard_numel) - begin};
}

MatrixExchange::MatrixExchange(const std::vector<Unit*>& units, Communicator& tensor, double (*cost)(const MatrixShape& shape))
    : shard_(*units.front()->group().shard), tensor_(tensor) {
  std::vector<int> unit_of;
  std::vector<MatrixShape> shapes;
  for (size_t u = 0; u < units.size(); ++u) {
    TRIREME_CHECK(units[u]->group() == units.front()->group(), units[u]->name(), " is of another shard group");
    for (const Unit::Segment& whole : units[u]->segments(0, units[u]->numel())) {
      if (!whole.spec->is_hidden_matrix || !whole.spec->trainable) continue;
      TRIREME_CHECK(whole.spec->local == whole.spec->box.extent, whole.spec->name, ": a matrix with rows of padding");
      matrices_.push_back({whole.spec, whole.flat_begin, units[u]->shard_numel(), 0, 0});
      unit_of.push_back(static_cast<int>(u));
      shapes.push_back(whole.spec->shape);
    }
  }
  const std::vector<int> owner = deal(shapes, cost, shard_.size(), tensor_.size()).owner;
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

Tensor MatrixExchange::transform(Context& ctx, Tensor pieces, const Change& change) const {
  const DType dtype = pieces.dtype();
  Counts kept(static_cast<size_t>(shard_.size())), collected(kept.size());  // elements of this rank's pieces by owner, of its parts by shard
  for (const Matrix& matrix : matrices_) kept[static_cast<size_t>(matrix.shard)] += matrix.in_shard(shard_.rank()).count;
  each_piece([&](size_t rank, size_t /*part*/, const Range& range) { collected[rank] += range.count; });
  Tensor packed = exchanged(ctx, shard_, pieces, kept, collected);
  pieces.reset();
  std::vector<Tensor> parts;
  for (const Matrix& matrix : matrices_)
    if (matrix.shard == shard_.rank()) parts.push_back(workspace(ctx, matrix.spec->numel(), dtype));
  const auto each_copy = [&](const auto& copy_piece) {
    int64_t begin = 0;
    each_piece([&](size_t /*rank*/, size_t part, const Range& range) {
      copy_piece(packed.flat(begin, range.count), parts[part].flat(range.begin, range.count));
      begin += range.count;
    });
  };
  each_copy([&](const Tensor& piece, const Tensor& part) { copy(ctx, piece, part); });
  packed.reset();
  transform_parts(ctx, parts, dtype, change);
  packed = workspace(ctx, sum_of(collected), dtype);
  each_copy([&](const Tensor& piece, const Tensor& part) { copy(ctx, part, piece); });
  parts.clear();
  return exchanged(ctx, shard_, packed, collected, kept);
}

/// `parts`: this tensor rank's parts of the matrices whose owners have its shard rank. They are changed in place.
void MatrixExchange::transform_parts(Context& ctx, const std::vector<Tensor>& parts, DType dtype, const Change& change) const {
  const auto ranks = static_cast<size_t>(tensor_.size());
  std::vector<const Matrix*> collected, own;
  for (const Matrix& matrix : matrices_)
    if (matrix.shard == shard_.rank()) collected.push_back(&matrix);
  if (ranks == 1) {  // a part is a matrix: no copies
    for (size_t i = 0; i < parts.size(); ++i) change(collected[i]->spec->shape, shaped(parts[i], collected[i]->spec->shape));
    return;
  }
  // To the owner every part goes once, from its primary copy; back to every rank that has it.
  Counts sent(ranks), received(ranks), sent_back(ranks), received_back(ranks);
  std::vector<std::vector<ParamSpec>> on_ranks(ranks);  // by rank, of the own matrices
  std::vector<Tensor> whole;
  for (const Matrix* matrix : collected) {
    const auto owner = static_cast<size_t>(matrix->tensor);
    if (matrix->spec->is_primary_copy) sent[owner] += matrix->spec->numel();
    received_back[owner] += matrix->spec->numel();
    if (matrix->tensor != tensor_.rank()) continue;
    own.push_back(matrix);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const ParamSpec& spec = on_ranks[rank].emplace_back(on_rank(*matrix->spec, {static_cast<int>(rank), tensor_.size()}));
      if (spec.is_primary_copy) received[rank] += spec.numel();
      sent_back[rank] += spec.numel();
    }
  }
  // The parts of the own matrices, by rank.
  const auto each_part = [&](bool primary_only, const Tensor& packed, const auto& body) {
    int64_t begin = 0;
    for (const std::vector<ParamSpec>& specs : on_ranks) {
      for (size_t i = 0; i < specs.size(); ++i) {
        if (primary_only && !specs[i].is_primary_copy) continue;
        body(packed.flat(begin, specs[i].numel()), specs[i].box, whole[i]);
        begin += specs[i].numel();
      }
    }
  };
  // This rank's parts, by owner.
  const auto each_own_part = [&](bool primary_only, const Tensor& packed, const auto& body) {
    int64_t begin = 0;
    for (size_t owner = 0; owner < ranks; ++owner)
      for (size_t i = 0; i < collected.size(); ++i) {
        if (static_cast<size_t>(collected[i]->tensor) != owner || (primary_only && !collected[i]->spec->is_primary_copy)) continue;
        body(packed.flat(begin, parts[i].numel()), parts[i]);
        begin += parts[i].numel();
      }
  };
  Tensor packed = workspace(ctx, sum_of(sent), dtype);
  each_own_part(true, packed, [&](const Tensor& to, const Tensor& part) { copy(ctx, part, to); });
  packed = exchanged(ctx, tensor_, packed, sent, received);
  for (const Matrix* matrix : own)
    whole.push_back(shaped(workspace(ctx, matrix->spec->shape[0] * matrix->spec->shape[1], dtype), matrix->spec->shape));
  each_part(true, packed, [&](const Tensor& from, const Box& box, const Tensor& matrix) { place(ctx, from, box, matrix); });
  packed.reset();
  for (size_t i = 0; i < own.size(); ++i) change(own[i]->spec->shape, whole[i]);
  packed = workspace(ctx, sum_of(sent_back), dtype);
  each_part(false, packed, [&](const Tensor& to, const Box& box, const Tensor& matrix) { take(ctx, matrix, box, to); });
  whole.clear();
  packed = exchanged(ctx, tensor_, packed, sent_back, received_back);
  each_own_part(false, packed, [&](const Tensor& from, const Tensor& part) { copy(ctx, from, part); });
}

}  // namespace trireme
