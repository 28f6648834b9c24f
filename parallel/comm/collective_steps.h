#pragma once
// All-reduce, reduce-scatter and all-gather as lists of steps over point-to-point messages. A list is a value that depends only on its arguments. The
// same list is executed (stepwise.h), counted, simulated under rendezvous semantics, timed, and printed.
//
// Order of summation. Every element is summed once and copied, or summed by all ranks in the same order from the same operands, so all ranks hold equal
// bits and a rerun repeats them. x_r is the value of rank r, n the number of ranks, m the largest power of two up to n, r = n - m.
//   ring                part p of the buffer: x_(p+1) + x_(p+2) + ... + x_n + x_0 + ... + x_p, from left to right.
//   recursive_doubling  a balanced tree over the ranks in their order: ((x_0 + x_1) + (x_2 + x_3)) + ... If n is not a power of two, the first 2r
//                       ranks are added in pairs (x_0 + x_1), (x_2 + x_3), ..., and each pair counts as one rank of the tree.
//   rabenseifner        a balanced tree that joins the most distant ranks first: for n = 4 (x_0 + x_2) + (x_1 + x_3). Pairs as above.
//   binomial            a balanced tree over the ranks in their order, filled up to a power of two with ranks that add nothing; rank 0 has the sum.
//   double_binary_tree  first half of the buffer: each rank of tree 0 adds its lower child's sum, then its higher child's sum, to its own value; the
//                       root is rank 0. Second half: the same in tree 1.
// In each addition the operand that comes from the lower of the two ranks is the first one. That decides between +0 and -0 in a maximum, and which NaN
// survives. bf16 and fp16 are rounded after each addition.
//
// The double binary tree reduces. A reduce_scatter and an all_gather of this algorithm use the ring, as NCCL does, because a tree would send each byte
// to ranks that do not need it. recursive_doubling and rabenseifner have the same reduce_scatter (recursive halving) and the same all_gather (recursive
// doubling). binomial reduces to rank 0 and scatters, and gathers to rank 0 and broadcasts.
//
// Sources: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19 (2005). P. Sanders, J. Speck,
// J. Traeff, Two-Tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan, Parallel Computing 35 (2009).
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

enum class CollectiveAlgorithm : uint8_t { kRing, kRecursiveDoubling, kRabenseifner, kBinomial, kDoubleBinaryTree };
inline constexpr std::array kCollectiveAlgorithms{CollectiveAlgorithm::kRing, CollectiveAlgorithm::kRecursiveDoubling,
                                                  CollectiveAlgorithm::kRabenseifner, CollectiveAlgorithm::kBinomial,
                                                  CollectiveAlgorithm::kDoubleBinaryTree};
const char* name_of(CollectiveAlgorithm algorithm);  ///< "recursive_doubling"

enum class CollectiveVerb : uint8_t { kAllReduce, kReduceScatter, kAllGather };

/// A message out and a message in that progress together; then what was received is merged. The next step begins when all of that is done.
struct CollectiveStep {
  struct Message {
    int peer;              ///< rank in the group
    int64_t begin, count;  ///< elements of the buffer; count is positive
    bool operator==(const Message&) const = default;
  };
  enum class Merge : uint8_t {
    kReplace,        ///< the received elements take the place of this rank's
    kReceivedFirst,  ///< received op own
    kOwnFirst,       ///< own op received
  };
  std::optional<Message> send, receive;
  Merge merge = Merge::kReplace;  ///< how what was received is merged

  std::string str() const;  ///< "send 3 elements from 6 to rank 2, receive 3 elements from 0 of rank 0 and add"
  bool operator==(const CollectiveStep&) const = default;
};
using CollectiveSteps = std::vector<CollectiveStep>;

/// The list of `rank` of n >= 1 ranks for a buffer of `count` elements. Empty messages are left out, so `count` may be less than n, or 0.
/// all_reduce: the buffer holds this rank's values before and the sums after. reduce_scatter: the same, but afterwards only part `rank` of n equal
/// parts holds sums and the rest is unspecified. all_gather: only part `rank` holds values before. `count` is then a multiple of n.
/// `pieces`: number of pieces into which a double binary tree cuts each half of the buffer, from 1; the sums do not depend on it. Others ignore it.
CollectiveSteps collective_steps(CollectiveAlgorithm algorithm, CollectiveVerb verb, int rank, int n, int64_t count, int64_t pieces = 1);

/// Parent of a rank in tree 0 or 1 of the double binary tree; -1 for the root. Tree 0 joins ranks by their lowest set bit. Tree 1 is its mirror image,
/// or, if n is odd, tree 0 shifted by one rank. Depth: ceil(log2 n).
int tree_parent(int tree, int rank, int n);

/// What a rank sends.
struct SentMessages {
  int64_t messages = 0, elements = 0;
};
SentMessages sent_messages(const CollectiveSteps& steps);

/// A run of the lists of all ranks in which a message moves only once both of its ranks have reached their step (rendezvous semantics).
struct CollectiveSimulation {
  double seconds = 0;  ///< until the last rank is done
  std::string error;   ///< "" if every rank finishes; otherwise what each blocked rank waits for
};
/// `message` and `merge`: seconds of sending and of summing a number of elements.
CollectiveSimulation simulate(const std::vector<CollectiveSteps>& ranks, const std::function<double(int64_t)>& message,
                              const std::function<double(int64_t)>& merge);

/// One line for each step of each rank.
std::string text_of(const std::vector<CollectiveSteps>& ranks);

}  // namespace trireme
