#include "parallel/sharding/compressed_reducer.h"

#include <algorithm>
#include <numeric>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/update.h"

namespace trireme {
bool is_compressed(const ParamSpec& spec) { return spec.dims == 2 && spec.partial_over == Partial::kNone; }

UnitMessage gradient_message(const Unit& unit, const CompressionOptions& options, int64_t begin, int64_t count, DType gradient, bool warm_up) {
  return message_of(unit, begin, count, gradient, [&](const ParamSpec& spec) {
    EncodingOptions encoding = options.encoding;
    if (!is_compressed(spec) || warm_up) encoding.encoding = Encoding::kNone;
    encoding.unbiased = !options.error_feedback;
    return encoding;
  });
}

EncodingDraw gradient_draw(const CompressionOptions& options, const Unit::Segment& segment, int64_t step) {
  const uint64_t key = random_key(options.seed, "compression:" + segment.spec->name);
  return {key + static_cast<uint64_t>(segment.param_begin), static_cast<uint64_t>(step)};
}

CompressedReducer::CompressedReducer(Context& ctx, std::vector<Unit*> units, const CompressionOptions& options, DType wire, DType gradient)
    : units_(std::move(units)), options_(options), gradient_(gradient), plain_(wire), sums_(units_.size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u]->trainable()) continue;
    const ShardGroup& group = units_[u]->group();
    const int64_t owned = units_[u]->shard_numel(), first = units_[u]->owned_begin();
    std::vector<Piece> shards, pieces;
    for (int r = 0; r < group.shards(); ++r) shards.push_back({r * owned, owned});
    const int64_t piece = (owned + group.replicas() - 1) / group.replicas();
    for (int r = 0; r < group.replicas(); ++r) {
      const int64_t begin = std::min(r * piece, owned);
      pieces.push_back({first + begin, std::min(piece, owned - begin)});
    }
    if (!options_.replicas_only) prepare(ctx, sums_[u].scatter, shards, group.own_shard(), true);
    prepare(ctx, sums_[u].replicas, pieces, group.own_replica(), false);
  }
}

void CompressedReducer::prepare(Context& ctx, Sum& sum, const std::vector<Piece>& pieces, int rank, bool scatter) {
  if (pieces.size() == 1) return;
  sum.pieces = pieces;
  sum.rank = rank;
  sum.base = pieces.front().begin;
  if (!options_.error_feedback) return;
  const int64_t own = pieces[static_cast<size_t>(rank)].count, all = pieces.back().begin + pieces.back().count - sum.base;
  const auto zeros = [&](int64_t count) { return Tensor::zeros(ctx, {count}, gradient_, MemoryCategory::kOptimizer); };
  sum.error = zeros(all);
  sum.next_error = zeros(scatter ? own : all);
  if (scatter) return;
  sum.owner_error = zeros(own);
  sum.next_owner_error = zeros(own);
}

std::vector<Reducer::State> CompressedReducer::state(int unit) const {
  const UnitSums& sums = sums_[static_cast<size_t>(unit)];
  std::vector<State> states;
  if (sums.scatter.error.defined()) states.push_back({"scatter_error", sums.scatter.error, sums.scatter.base});
  if (sums.replicas.error.defined()) {
    states.push_back({"replica_error", sums.replicas.error, sums.replicas.base});
    states.push_back({"owner_error", sums.replicas.owner_error, sums.replicas.pieces[static_cast<size_t>(sums.replicas.rank)].begin});
  }
  return states;
}

bool CompressedReducer::compresses(const Reduction& reduction) const {
  return reduction.kind != Reduction::Kind::kTied && !sums_[static_cast<size_t>(reduction.unit)].of(reduction.kind).pieces.empty();
}

UnitMessage CompressedReducer::message(int unit, const Piece& piece, bool warm_up) const {
  return gradient_message(*units_[static_cast<size_t>(unit)], options_, piece.begin, piece.count, gradient_, warm_up);
}

int64_t CompressedReducer::largest_message(int unit, const Sum& sum, bool warm_up) const {
  int64_t largest = 0;
  for (const Piece& piece : sum.pieces) largest = std::max(largest, message(unit, piece, warm_up).bytes);
  return largest;
}

double CompressedReducer::sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const {
  const bool scatter = kind == Reduction::Kind::kScatter;
  const Sum& sum = sums_[static_cast<size_t>(unit)].of(kind);
  if (sum.pieces.empty()) return plain_.sent_bytes(kind, unit, shard_numel, ranks);
  int64_t bytes = scatter ? 0 : (ranks - 1) * largest_message(unit, sum, false);
  for (int r = 0; r < ranks; ++r)
    if (r != sum.rank) bytes += message(unit, sum.pieces[static_cast<size_t>(r)], false).bytes;
  return static_cast<double>(bytes);
}

void CompressedReducer::begin(Context& ctx, const Reduction& reduction) {
  if (!compresses(reduction)) return plain_.start(ctx, reduction);
  const bool scatter = reduction.kind == Reduction::Kind::kScatter;
  TRIREME_CHECK(!reduction.accumulate, "compressed gradients of unit ", reduction.unit, " cannot be accumulated in shards");
  Sum& sum = sums_[static_cast<size_t>(reduction.unit)].of(reduction.kind);
  if (scatter && options_.error_feedback) sum.whole = reduction.whole;
  const Tensor& gradient = scatter ? reduction.whole : reduction.shard;
  std::vector<UnitMessage> messages;
  std::vector<int64_t> sent;
  for (const Piece& piece : sum.pieces) sent.push_back(messages.emplace_back(message(reduction.unit, piece, warms_up())).bytes);
  const std::vector<int64_t> received(sum.pieces.size(), sent[static_cast<size_t>(sum.rank)]);
  const auto bytes = [&](const std::vector<int64_t>& counts) {
    return Tensor::empty(ctx, {std::accumulate(counts.begin(), counts.end(), int64_t{0})}, DType::kU8, MemoryCategory::kCommunication);
  };
  sum.sending = bytes(sent);
  sum.receiving = bytes(received);
  fill(ctx, 0, sum.sending);
  int64_t offset = 0;
  for (size_t r = 0; r < sum.pieces.size(); ++r) {
    // The own part of `whole` is about to receive the sum, and so is the whole shard.
    const bool overwritten = !scatter || static_cast<int>(r) == sum.rank;
    for (const auto& [segment, encoding, begin, bytes_of_part] : messages[r].parts) {
      const Tensor g = slice_of(gradient, segment, sum.base);
      const Tensor next = !options_.error_feedback ? Tensor()
                          : overwritten            ? slice_of(sum.next_error, segment, scatter ? sum.pieces[r].begin : sum.base)
                                                   : g;
      const Tensor out = sum.sending.flat(offset + begin, bytes_of_part);
      encode(ctx, encoding, draw(segment), g, slice_of(sum.error, segment, sum.base), out, next);
    }
    offset += sent[r];
  }
  sum.work = reduction.comm->all_to_all_v(ctx, sum.sending, sent, sum.receiving, received);
}

void CompressedReducer::add_decoded(Context& ctx, int unit, const Piece& piece, const Tensor& received, const Tensor& out) const {
  for (const auto& [segment, encoding, begin, bytes] : message(unit, piece, warms_up()).parts)
    decode(ctx, encoding, draw(segment), received.flat(begin, bytes), slice_of(out, segment, piece.begin));
}

void CompressedReducer::end(Context& ctx, const Reduction& reduction) {
  if (!compresses(reduction)) return plain_.finish(ctx, reduction.unit);
  const bool scatter = reduction.kind == Reduction::Kind::kScatter;
  Sum& sum = sums_[static_cast<size_t>(reduction.unit)].of(reduction.kind);
  const Piece own = sum.pieces[static_cast<size_t>(sum.rank)];
  const auto ranks = static_cast<int64_t>(sum.pieces.size());
  sum.work.wait(ctx);
  const int64_t length = sum.receiving.numel() / ranks;
  const Tensor total = scatter ? reduction.shard : Tensor::empty(ctx, {own.count}, gradient_, MemoryCategory::kCommunication);
  fill(ctx, 0, total);
  for (int64_t r = 0; r < ranks; ++r) add_decoded(ctx, reduction.unit, own, sum.receiving.flat(r * length, length), total);
  sum.sending.reset();
  sum.receiving.reset();
  if (scatter) return;

  const int64_t largest = largest_message(reduction.unit, sum, warms_up());
  const Tensor in = Tensor::zeros(ctx, {largest}, DType::kU8, MemoryCategory::kCommunication);
  const Tensor out = Tensor::empty(ctx, {largest * ranks}, DType::kU8, MemoryCategory::kCommunication);
  for (const auto& [segment, encoding, begin, bytes] : message(reduction.unit, own, warms_up()).parts)
    encode(ctx, encoding, draw(segment), slice_of(total, segment, own.begin), slice_of(sum.owner_error, segment, own.begin), in.flat(begin, bytes),
           slice_of(sum.next_owner_error, segment, own.begin));
  reduction.comm->all_gather(ctx, in, out).wait(ctx);
  fill(ctx, 0, reduction.shard);
  for (int64_t r = 0; r < ranks; ++r) {
    const Piece& piece = sum.pieces[static_cast<size_t>(r)];
    add_decoded(ctx, reduction.unit, piece, out.flat(r * largest, largest), reduction.shard.flat(piece.begin - sum.base, piece.count));
  }
}

void CompressedReducer::settle(Context& ctx, int unit, const Tensor& scalars) {
  if (!options_.error_feedback) return;
  UnitSums& sums = sums_[static_cast<size_t>(unit)];
  if (Sum& sum = sums.scatter; sum.whole.defined()) {
    const Piece own = sum.pieces[static_cast<size_t>(sum.rank)];
    const int64_t end = own.begin + own.count;
    const auto keep = [&](int64_t begin, int64_t count, const Tensor& next) { copy_accepted(ctx, scalars, next, sum.error.flat(begin, count)); };
    keep(0, own.begin, sum.whole.flat(0, own.begin));
    keep(own.begin, own.count, sum.next_error);
    keep(end, sum.whole.numel() - end, sum.whole.flat(end, sum.whole.numel() - end));
    sum.whole.reset();
  }
  if (sums.replicas.error.defined()) {
    copy_accepted(ctx, scalars, sums.replicas.next_error, sums.replicas.error);
    copy_accepted(ctx, scalars, sums.replicas.next_owner_error, sums.replicas.owner_error);
  }
}

}  // namespace trireme
