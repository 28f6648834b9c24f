#include "parallel/comm/collective_costs.h"

#include <algorithm>
#include <bit>

namespace trireme {
namespace {

double seconds_by(const std::vector<MessageCosts::Range>& ranges, double bytes) {
  const MessageCosts::Range* chosen = &ranges.front();
  for (const MessageCosts::Range& range : ranges)
    if (range.from <= bytes) chosen = &range;
  return chosen->latency + bytes / chosen->bandwidth;
}

/// The terms of a formula for n ranks and S bytes.
struct Terms {
  int64_t n;
  double bytes;
  const MessageCosts& costs;

  double t(double size) const {
    return within(size, [&](double of) { return costs.message(of); });
  }
  double g(double size) const {
    return within(size, [&](double of) { return costs.sum(of); });
  }
  /// A part of a buffer is not faster per byte than half of the buffer: the caches that make small messages fast do not hold all parts.
  double within(double size, auto&& seconds) const {
    const double half = std::max(size, bytes / 2);
    return half > 0 ? std::max(seconds(size), size / half * seconds(half)) : seconds(0);
  }
  int64_t levels() const { return std::bit_width(static_cast<uint64_t>(n)) - 1; }  ///< floor(log2 n)
  int64_t depth() const { return std::bit_width(static_cast<uint64_t>(n - 1)); }   ///< ceil(log2 n)
  bool folds() const { return !std::has_single_bit(static_cast<uint64_t>(n)); }
  /// The sum over k = 1 ... levels of size(S / 2^k).
  double halving(int64_t of_levels, auto&& size) const {
    double sum = 0, part = bytes;
    for (int64_t level = 0; level < of_levels; ++level) sum += size(part /= 2);
    return sum;
  }
};

double ring_seconds(const Terms& x, CollectiveVerb verb) {
  const auto steps = static_cast<double>(x.n - 1), part = x.bytes / static_cast<double>(x.n);
  const double once = steps * x.t(part), summed = once + steps * x.g(part);
  return verb == CollectiveVerb::kAllGather ? once : verb == CollectiveVerb::kReduceScatter ? summed : once + summed;
}

double doubling_seconds(const Terms& x) {
  const double fold = x.folds() ? 2 * x.t(x.bytes) + x.g(x.bytes) : 0;
  return fold + static_cast<double>(x.levels()) * (x.t(x.bytes) + x.g(x.bytes));
}

double rabenseifner_seconds(const Terms& x, CollectiveVerb verb) {
  const double once = x.halving(x.levels(), [&](double size) { return x.t(size); });
  const double sums = x.halving(x.levels(), [&](double size) { return x.g(size); });
  const double part = verb == CollectiveVerb::kAllReduce ? x.bytes : x.bytes / static_cast<double>(x.n);
  const double moved = x.folds() ? x.t(x.bytes) + x.t(part) : 0, added = x.folds() ? x.g(x.bytes) : 0;
  if (verb == CollectiveVerb::kAllGather) return once + moved;
  return (verb == CollectiveVerb::kAllReduce ? 2 : 1) * once + sums + moved + added;
}

double binomial_seconds(const Terms& x, CollectiveVerb verb) {
  const double whole = static_cast<double>(x.depth()) * x.t(x.bytes), sums = static_cast<double>(x.depth()) * x.g(x.bytes);
  const double parts = x.halving(x.depth(), [&](double size) { return x.t(size); });
  if (verb == CollectiveVerb::kAllReduce) return 2 * whole + sums;
  return whole + parts + (verb == CollectiveVerb::kReduceScatter ? sums : 0);
}

double tree_seconds(const Terms& x, int64_t pieces) {
  // For each piece after the first.
  const double rounds = x.n == 2 ? 2 : x.n <= 5 ? 4.5 : 5.5, sums = x.n <= 4 ? static_cast<double>(int64_t{1} << (x.n - 2)) : 4.2;
  const bool chain = x.n > 2 && std::has_single_bit(static_cast<uint64_t>(x.n - 1));  // the deepest level has one rank in each tree
  const auto first = static_cast<double>(4 * x.depth() - (chain ? 4 : 2)), first_sums = static_cast<double>(2 * x.depth() - 1);
  const double piece = x.bytes / static_cast<double>(2 * pieces), further = static_cast<double>(pieces - 1);
  return (first + rounds * further) * x.t(piece) + (first_sums + sums * further) * x.g(piece);
}

}  // namespace

double MessageCosts::message(double bytes) const { return seconds_by(ranges, bytes); }

double MessageCosts::sum(double bytes) const { return sums.empty() ? 0 : seconds_by(sums, bytes); }

int64_t tree_pieces(int64_t n, double bytes, const MessageCosts& costs) {
  constexpr int64_t kMostPieces = 64;
  int64_t best = 1;
  for (int64_t pieces = 2; pieces <= kMostPieces; pieces *= 2)
    if (tree_seconds({n, bytes, costs}, pieces) < tree_seconds({n, bytes, costs}, best)) best = pieces;
  return best;
}

double collective_seconds(CollectiveAlgorithm algorithm, CollectiveVerb verb, int64_t n, double bytes, const MessageCosts& costs) {
  if (n <= 1) return 0;
  const Terms terms{n, bytes, costs};
  const bool reduces = verb == CollectiveVerb::kAllReduce;
  switch (algorithm) {
    case CollectiveAlgorithm::kRing: return costs.start + ring_seconds(terms, verb);
    case CollectiveAlgorithm::kRecursiveDoubling: return costs.start + (reduces ? doubling_seconds(terms) : rabenseifner_seconds(terms, verb));
    case CollectiveAlgorithm::kRabenseifner: return costs.start + rabenseifner_seconds(terms, verb);
    case CollectiveAlgorithm::kBinomial: return costs.start + binomial_seconds(terms, verb);
    case CollectiveAlgorithm::kDoubleBinaryTree:
      return costs.start + (reduces ? tree_seconds(terms, tree_pieces(n, bytes, costs)) : ring_seconds(terms, verb));
  }
  return 0;
}

CollectiveAlgorithm fastest_algorithm(CollectiveVerb verb, int64_t n, double bytes, const MessageCosts& costs) {
  return *std::ranges::min_element(kCollectiveAlgorithms, {},
                                   [&](CollectiveAlgorithm algorithm) { return collective_seconds(algorithm, verb, n, bytes, costs); });
}

}  // namespace trireme
