#include "parallel/comm/collective_steps.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"

namespace trireme {
namespace {

using StepMessage = CollectiveStep::Message;
using Merge = CollectiveStep::Merge;

/// Elements [begin, end).
struct Extent {
  int64_t begin, end;
};

/// The list of one rank while it is being made.
class StepList {
 public:
  explicit StepList(int rank) : rank_(rank) {}

  void send(int peer, Extent what) { exchange(peer, what, peer, {0, 0}, false); }
  void receive(int peer, Extent what, bool reduce) { exchange(peer, {0, 0}, peer, what, reduce); }
  /// With `reduce`, the operand of the lower rank comes first.
  void exchange(int to, Extent out, int from, Extent in, bool reduce) {
    CollectiveStep step;
    if (out.end > out.begin) step.send = StepMessage{to, out.begin, out.end - out.begin};
    if (in.end > in.begin) step.receive = StepMessage{from, in.begin, in.end - in.begin};
    if (step.receive && reduce) step.merge = from < rank_ ? Merge::kReceivedFirst : Merge::kOwnFirst;
    if (step.send || step.receive) steps_.push_back(step);
  }
  CollectiveSteps take() { return std::move(steps_); }

 private:
  int rank_;
  CollectiveSteps steps_;
};

/// Part `i` of n parts that differ by at most one element.
Extent part_of(int64_t i, int64_t n, int64_t count) {
  const int64_t size = count / n, longer = count % n;
  const auto begin = [&](int64_t part) { return part * size + std::min(part, longer); };
  return {begin(i), begin(i + 1)};
}

/// After n - 1 steps part `rank` is summed.
void ring_scatter(StepList& list, int rank, int n, int64_t count) {
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  for (int step = 0; step < n - 1; ++step)
    list.exchange(next, part_of((rank + 2 * n - step - 1) % n, n, count), previous, part_of((rank + 2 * n - step - 2) % n, n, count), true);
}

void ring_gather(StepList& list, int rank, int n, int64_t count) {
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  for (int step = 0; step < n - 1; ++step)
    list.exchange(next, part_of((rank + n - step) % n, n, count), previous, part_of((rank + 2 * n - step - 1) % n, n, count), false);
}

/// The largest power of two up to n of the ranks, which stand for all of them: each of the first 2 (n - 2^k) ranks with an odd number stands for
/// itself and the rank before it.
class Fold {
 public:
  Fold(int rank, int n) : rank_(rank), core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))), pairs_(n - core_) {}

  int core() const { return core_; }
  bool paired() const { return rank_ < 2 * pairs_; }
  bool idle() const { return paired() && rank_ % 2 == 0; }  ///< its partner stands for it
  int position() const { return paired() ? rank_ / 2 : rank_ - pairs_; }
  int rank_at(int position) const { return position < pairs_ ? 2 * position + 1 : position + pairs_; }
  /// The first rank for which the rank at a position stands; n for `core`.
  int first_at(int position) const { return position < pairs_ ? 2 * position : position + pairs_; }

  /// The idle rank of a pair gives `what` to the other, ...
  void give(StepList& list, Extent what, bool reduce) const {
    if (!paired()) return;
    if (idle())
      list.send(rank_ + 1, what);
    else
      list.receive(rank_ - 1, what, reduce);
  }
  /// ... and receives `what` from it.
  void take(StepList& list, Extent what) const {
    if (!paired()) return;
    if (idle())
      list.receive(rank_ + 1, what, false);
    else
      list.send(rank_ - 1, what);
  }

 private:
  int rank_, core_, pairs_;
};

/// The places [first, last) of the positions of a Fold in the buffer.
using Places = std::function<Extent(int first, int last)>;

void double_recursively(StepList& list, const Fold& fold, Extent all) {
  if (fold.idle()) return;
  for (int bit = 1; bit < fold.core(); bit *= 2) {
    const int peer = fold.rank_at(fold.position() ^ bit);
    list.exchange(peer, all, peer, all, true);
  }
}

/// Recursive halving: afterwards the place of this rank's position is summed.
void halve(StepList& list, const Fold& fold, const Places& places) {
  if (fold.idle()) return;
  int first = 0;  // this rank's block of positions
  for (int half = fold.core() / 2; half > 0; half /= 2) {
    const bool upper = (fold.position() & half) != 0;
    const int peer = fold.rank_at(fold.position() ^ half);
    const Extent low = places(first, first + half), high = places(first + half, first + 2 * half);
    list.exchange(peer, upper ? low : high, peer, upper ? high : low, true);
    if (upper) first += half;
  }
}

/// Recursive doubling of a gather: from the place of this rank's position to all places.
void gather_doubling(StepList& list, const Fold& fold, const Places& places) {
  if (fold.idle()) return;
  for (int half = 1; half < fold.core(); half *= 2) {
    const int own = fold.position() & ~(half - 1), other = own ^ half;
    const int peer = fold.rank_at(fold.position() ^ half);
    list.exchange(peer, places(own, own + half), peer, places(other, other + half), false);
  }
}

void binomial_reduce(StepList& list, int rank, int n, Extent all) {
  for (int bit = 1; bit < n; bit *= 2) {
    if ((rank & bit) != 0) return list.send(rank ^ bit, all);
    if (rank + bit < n) list.receive(rank + bit, all, true);
  }
}

/// From the root to the leaves. `what(child, bit)`: what the subtree of `child`, which has ranks [child, child + bit), needs.
void binomial_spread(StepList& list, int rank, int n, const std::function<Extent(int child, int bit)>& what) {
  int bit = rank == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))) : rank & -rank;
  if (rank != 0) list.receive(rank ^ bit, what(rank, bit), false);
  for (bit /= 2; bit > 0; bit /= 2)
    if (rank + bit < n) list.send(rank + bit, what(rank + bit, bit));
}

void binomial_gather(StepList& list, int rank, int n, int64_t count) {
  const auto subtree = [&](int first, int bit) {
    return Extent{part_of(first, n, count).begin, part_of(std::min(n, first + bit) - 1, n, count).end};
  };
  for (int bit = 1; bit < n; bit *= 2) {
    if ((rank & bit) != 0) return list.send(rank ^ bit, subtree(rank, bit));
    if (rank + bit < n) list.receive(rank + bit, subtree(rank + bit, bit), false);
  }
}

/// A message of the double binary tree, in the round of the whole group in which it moves.
struct TreeMessage {
  int64_t round;
  int from, to;
  Extent what;
  bool up;
};

/// Gives each message the first round in which its sender sends nothing else, its receiver receives nothing else, and what it carries is complete.
class TreeRounds {
 public:
  explicit TreeRounds(int n) : sends_(static_cast<size_t>(n)), receives_(static_cast<size_t>(n)) {}
  int64_t place(int from, int to, int64_t earliest) {
    auto &sends = sends_[static_cast<size_t>(from)], &receives = receives_[static_cast<size_t>(to)];
    auto round = static_cast<size_t>(earliest);
    const auto taken = [&](const std::vector<bool>& rounds) { return round < rounds.size() && rounds[round]; };
    while (taken(sends) || taken(receives)) ++round;
    for (std::vector<bool>* rounds : {&sends, &receives}) {
      if (rounds->size() <= round) rounds->resize(round + 1);
      (*rounds)[round] = true;
    }
    return static_cast<int64_t>(round);
  }

 private:
  std::vector<std::vector<bool>> sends_, receives_;  ///< by rank, by round
};

int tree_depth(int tree, int rank, int n) {
  int depth = 0;
  for (int at = tree_parent(tree, rank, n); at >= 0; at = tree_parent(tree, at, n)) ++depth;
  return depth;
}

/// All messages of the group. Pieces move up a tree and down again one after another, those of both trees at the same time. A rank receives the sums
/// of its children in their order, for each piece.
std::vector<TreeMessage> tree_messages(int n, int64_t count, int64_t pieces) {
  struct Node {
    int tree, rank, parent, depth;
  };
  std::vector<Node> bottom_up[2];
  for (int tree = 0; tree < 2; ++tree) {
    for (int rank = 0; rank < n; ++rank)
      if (const int parent = tree_parent(tree, rank, n); parent >= 0) bottom_up[tree].push_back({tree, rank, parent, tree_depth(tree, rank, n)});
    std::ranges::stable_sort(bottom_up[tree], std::ranges::greater(), &Node::depth);
  }
  TreeRounds rounds(n);
  std::vector<TreeMessage> messages;
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (int tree = 0; tree < 2; ++tree) {
      const Extent half = part_of(tree, 2, count), part = part_of(piece, pieces, half.end - half.begin);
      const Extent what{half.begin + part.begin, half.begin + part.end};
      if (what.end == what.begin) continue;
      std::vector<int64_t> ready(static_cast<size_t>(n), 0);  // by rank: the first round after all that it has received of this piece
      const auto move = [&](int from, int to, bool up) {
        // Up: the receiver has merged its lower child before the higher one arrives.
        const int64_t earliest = up ? std::max(ready[static_cast<size_t>(from)], ready[static_cast<size_t>(to)]) : ready[static_cast<size_t>(from)];
        const int64_t round = rounds.place(from, to, earliest);
        messages.push_back({round, from, to, what, up});
        ready[static_cast<size_t>(to)] = round + 1;
      };
      for (const Node& node : bottom_up[tree]) move(node.rank, node.parent, true);
      for (auto node = bottom_up[tree].rbegin(); node != bottom_up[tree].rend(); ++node) move(node->parent, node->rank, false);
    }
  return messages;
}

CollectiveSteps tree_steps(int rank, int n, int64_t count, int64_t pieces) {
  std::vector<TreeMessage> messages = tree_messages(n, count, pieces);
  std::erase_if(messages, [&](const TreeMessage& message) { return message.from != rank && message.to != rank; });
  std::ranges::stable_sort(messages, {}, &TreeMessage::round);
  StepList list(rank);
  for (size_t i = 0; i < messages.size(); ++i) {
    const TreeMessage& one = messages[i];
    const bool paired = i + 1 < messages.size() && messages[i + 1].round == one.round;
    const TreeMessage& other = messages[paired ? ++i : i];
    const TreeMessage& out = one.from == rank ? one : other;
    const TreeMessage& in = one.to == rank ? one : other;
    list.exchange(out.to, out.from == rank ? out.what : Extent{0, 0}, in.from, in.to == rank ? in.what : Extent{0, 0}, in.up);
  }
  return list.take();
}

CollectiveSteps folded_steps(CollectiveAlgorithm algorithm, CollectiveVerb verb, int rank, int n, int64_t count) {
  StepList list(rank);
  const Fold fold(rank, n);
  const Extent all{0, count};
  if (verb == CollectiveVerb::kAllReduce) {
    fold.give(list, all, true);
    if (algorithm == CollectiveAlgorithm::kRecursiveDoubling) {
      double_recursively(list, fold, all);
    } else {
      const Places places = [&](int first, int last) {
        return Extent{part_of(first, fold.core(), count).begin, part_of(last - 1, fold.core(), count).end};
      };
      halve(list, fold, places);
      gather_doubling(list, fold, places);
    }
    fold.take(list, all);
    return list.take();
  }
  const int64_t part = count / n;
  const Places places = [&](int first, int last) { return Extent{fold.first_at(first) * part, fold.first_at(last) * part}; };
  const int stands_in = rank & ~1;  // the idle rank of this rank's pair
  const Extent idle_part{stands_in * part, (stands_in + 1) * part};
  if (verb == CollectiveVerb::kReduceScatter) {
    fold.give(list, all, true);
    halve(list, fold, places);
    fold.take(list, idle_part);
  } else {
    fold.give(list, idle_part, false);
    gather_doubling(list, fold, places);
    fold.take(list, all);
  }
  return list.take();
}

CollectiveSteps binomial_steps(CollectiveVerb verb, int rank, int n, int64_t count) {
  StepList list(rank);
  const Extent all{0, count};
  if (verb == CollectiveVerb::kAllGather)
    binomial_gather(list, rank, n, count);
  else
    binomial_reduce(list, rank, n, all);
  binomial_spread(list, rank, n, [&](int child, int bit) {
    if (verb != CollectiveVerb::kReduceScatter) return all;
    return Extent{part_of(child, n, count).begin, part_of(std::min(n, child + bit) - 1, n, count).end};
  });
  return list.take();
}

CollectiveSteps ring_steps(CollectiveVerb verb, int rank, int n, int64_t count) {
  StepList list(rank);
  if (verb != CollectiveVerb::kAllGather) ring_scatter(list, rank, n, count);
  if (verb != CollectiveVerb::kReduceScatter) ring_gather(list, rank, n, count);
  return list.take();
}

}  // namespace

const char* name_of(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kRing: return "ring";
    case CollectiveAlgorithm::kRecursiveDoubling: return "recursive_doubling";
    case CollectiveAlgorithm::kRabenseifner: return "rabenseifner";
    case CollectiveAlgorithm::kBinomial: return "binomial";
    case CollectiveAlgorithm::kDoubleBinaryTree: return "double_binary_tree";
  }
  return "?";
}

int tree_parent(int tree, int rank, int n) {
  if (tree == 1 && n % 2 == 0) {
    const int parent = tree_parent(0, n - 1 - rank, n);
    return parent < 0 ? -1 : n - 1 - parent;
  }
  if (tree == 1) {
    const int parent = tree_parent(0, (rank + n - 1) % n, n);
    return parent < 0 ? -1 : (parent + 1) % n;
  }
  if (rank == 0) return -1;
  const int lowest = rank & -rank, parent = (rank ^ lowest) | (2 * lowest);
  return parent < n ? parent : rank ^ lowest;
}

CollectiveSteps collective_steps(CollectiveAlgorithm algorithm, CollectiveVerb verb, int rank, int n, int64_t count, int64_t pieces) {
  TRIREME_CHECK(n >= 1 && rank >= 0 && rank < n && count >= 0 && pieces >= 1, "invalid list of rank ", rank, " of ", n, ", ", count, " elements");
  TRIREME_CHECK(verb == CollectiveVerb::kAllReduce || count % n == 0, count, " elements are not equal parts of ", n, " ranks");
  switch (algorithm) {
    case CollectiveAlgorithm::kRing: return ring_steps(verb, rank, n, count);
    case CollectiveAlgorithm::kRecursiveDoubling:
    case CollectiveAlgorithm::kRabenseifner: return folded_steps(algorithm, verb, rank, n, count);
    case CollectiveAlgorithm::kBinomial: return binomial_steps(verb, rank, n, count);
    case CollectiveAlgorithm::kDoubleBinaryTree:
      return verb == CollectiveVerb::kAllReduce ? tree_steps(rank, n, count, pieces) : ring_steps(verb, rank, n, count);
  }
  return {};
}

SentMessages sent_messages(const CollectiveSteps& steps) {
  SentMessages sent;
  for (const CollectiveStep& step : steps) {
    if (!step.send) continue;
    ++sent.messages;
    sent.elements += step.send->count;
  }
  return sent;
}

std::string CollectiveStep::str() const {
  std::string text;
  if (send) text = concat("send ", counted(send->count, "element"), " from ", send->begin, " to rank ", send->peer);
  if (!receive) return text;
  const char* const merged = merge == Merge::kReplace ? "" : merge == Merge::kOwnFirst ? ", own + received" : ", received + own";
  return concat(text, text.empty() ? "" : "; ", "receive ", counted(receive->count, "element"), " from ", receive->begin, " of rank ", receive->peer,
                merged);
}

std::string text_of(const std::vector<CollectiveSteps>& ranks) {
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (size_t step = 0; step < ranks[rank].size(); ++step) text += concat("rank ", rank, " step ", step, ": ", ranks[rank][step].str(), "\n");
  return text;
}

}  // namespace trireme
