#pragma once
// Time of the algorithms of collective_steps.h by the model of Thakur et al. (2005): a message of s bytes takes a + s b, summing s bytes takes s g.
#include <cstdint>
#include <vector>

#include "parallel/comm/collective_steps.h"

namespace trireme {

/// Seconds of one message, by ranges of its size, since transports change their protocol with the size; and of adding two buffers.
struct MessageCosts {
  struct Range {
    double from;       ///< bytes at which the range begins
    double latency;    ///< a, seconds
    double bandwidth;  ///< 1 / b, bytes/s
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges = {};  ///< not empty, ascending; the first also holds for smaller messages
  std::vector<Range> sums = {};    ///< the same for sums, by the bytes of one operand; empty: sums cost nothing
  double start = 0;                ///< seconds of a whole operation that do not depend on its messages
  double message(double bytes) const;
  double sum(double bytes) const;
  bool operator==(const MessageCosts&) const = default;
};

/// Seconds over n ranks for a buffer of S bytes: the full array, as for the verbs of Communicator, in place. 0 for n = 1. t(s): a message; g(s): a
/// sum; per byte they are no faster than for S/2 bytes. To each formula `start` is added.
/// L = floor(log2 n). If n is not a power of two, recursive_doubling and rabenseifner add 2 t(S) + g(S) to an all_reduce, and t(S) + t(S/n) + g(S) to
/// the other two verbs, which have no sum in an all_gather.
///   ring                all_reduce 2 (n-1) t(S/n) + (n-1) g(S/n); reduce_scatter and all_gather half of the messages
///   recursive_doubling  all_reduce L (t(S) + g(S)); the others as rabenseifner
///   rabenseifner        all_reduce the sum over k = 1 ... L of 2 t(S/2^k) + g(S/2^k); the others half of the messages
///   binomial            with D = ceil(log2 n): all_reduce D (2 t(S) + g(S)); the others the sum of t(S/2^k) for one of the two ways
///   double_binary_tree  all_reduce with k pieces of each half: (f + r (k-1)) t(S/2k) + (2 D - 1 + q (k-1)) g(S/2k); the others as ring. The first
///                       piece passes D levels up and down: f = 4 D - 2, and 4 D - 4 for n = 2^j + 1. Each further piece takes r rounds and q sums:
///                       r = 2 for n = 2, 4.5 up to 5, else 5.5; q = 1, 2, 4, 4.2 for n = 2, 3, 4 and more, as counted in simulations up to n = 64.
///                       The least possible r is 4, because a rank sends and receives up to four messages for a piece of both trees.
double collective_seconds(CollectiveAlgorithm algorithm, CollectiveVerb verb, int64_t n, double bytes, const MessageCosts& costs);

/// The number of pieces that minimises the formula of the double binary tree among powers of two up to 64.
int64_t tree_pieces(int64_t n, double bytes, const MessageCosts& costs);

/// The algorithm with the least collective_seconds; of equal ones the first of kCollectiveAlgorithms.
CollectiveAlgorithm fastest_algorithm(CollectiveVerb verb, int64_t n, double bytes, const MessageCosts& costs);

}  // namespace trireme
