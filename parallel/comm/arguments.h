#pragma once
// Argument checks shared by all communicators. Each throws an InternalError that names verb, group and rank.
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// For all_gather (part = in, whole = out) and reduce_scatter (part = out, whole = in). Checks that whole has size() times the elements of part, in
/// the same dtype, and that the two are disjoint or part is this rank's own part of whole. Returns true in the latter case. Meta tensors count as
/// disjoint.
bool is_own_part(const Communicator& comm, const char* verb, const Tensor& part, const Tensor& whole);

/// Elements [rank * n, (rank + 1) * n) of `whole`, n = whole.numel() / size().
Tensor own_part(const Communicator& comm, const Tensor& whole);

/// Checks that in and out have the same dtype and number of elements, a multiple of size(), and are disjoint. Returns the elements per part.
int64_t check_all_to_all(const Communicator& comm, const Tensor& in, const Tensor& out);
/// Checks that in and out have the same dtype, are 1-D and disjoint; that each has one count per rank, which add up to its elements; and that this
/// rank's two counts for itself are equal.
void check_all_to_all_v(const Communicator& comm, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                        std::span<const int64_t> receive_counts);
/// "all_to_all_v: rank 0 sends 3 elements to rank 1, which expects 4".
std::string count_mismatch(int source, int64_t sent, int destination, int64_t expected);
/// The parts of `whole` by rank: counts[r] elements each, contiguous.
std::vector<Tensor> split_parts(const Tensor& whole, std::span<const int64_t> counts);
/// The messages that exchange `send` and `receive`, which are parts by rank. Receives come first. Each rank starts with a different peer, so that not
/// all send to the same one. Includes this rank's own part if `with_own`.
std::vector<PointToPoint> messages_of(const Communicator& comm, std::span<const Tensor> send, std::span<const Tensor> receive, bool with_own);

void check_root(const Communicator& comm, int root);
void check_peers(const Communicator& comm, std::span<const PointToPoint> messages);
/// Checks that `ranks` are distinct ranks of `comm` and include this one; returns this rank's position.
int position_in_group(const Communicator& comm, const std::vector<int>& ranks, const std::string& name);

/// Copies the elements. Does nothing if the tensors are the same, or have no memory (kMeta).
void copy_elements(const Tensor& from, const Tensor& to);
/// The same on the device of `ctx`: on a GPU in the order of its compute stream.
void copy_elements(const Context& ctx, const Tensor& from, const Tensor& to);

}  // namespace trireme
