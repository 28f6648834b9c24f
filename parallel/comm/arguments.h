#pragma once
// What every communicator demands of the arguments of its verbs; each throws InternalError that names verb, group and rank.
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// For all_gather (part = in, whole = out) and reduce_scatter (part = out, whole = in): whole has size() times the elements of part, in one dtype;
/// the two are apart or part is this rank's own part of whole. Returns true in the latter case. Meta tensors count as apart.
bool is_own_part(const Communicator& comm, const char* verb, const Tensor& part, const Tensor& whole);

/// Elements [rank * n, (rank + 1) * n) of `whole`, n = whole.numel() / size().
Tensor own_part(const Communicator& comm, const Tensor& whole);

/// in and out have one dtype and one number of elements, a multiple of size(), and are apart. Returns the elements of a part.
int64_t check_all_to_all(const Communicator& comm, const Tensor& in, const Tensor& out);
/// in and out have one dtype, are 1-D and apart, and each has as many elements as its counts, one for each rank, add up to; this rank expects of itself
/// what it sends to itself.
void check_all_to_all_v(const Communicator& comm, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                        std::span<const int64_t> receive_counts);
/// "all_to_all_v: rank 0 sends 3 elements to rank 1, which expects 4".
std::string count_mismatch(int source, int64_t sent, int destination, int64_t expected);
/// The parts of `whole` by rank: counts[r] elements each, one behind the other.
std::vector<Tensor> split_parts(const Tensor& whole, std::span<const int64_t> counts);
/// `send` and `receive` are parts by rank. Receives first; each rank begins with another peer, so that they do not all send to one. This rank's own part
/// is among the messages if `with_own`.
std::vector<PointToPoint> messages_of(const Communicator& comm, std::span<const Tensor> send, std::span<const Tensor> receive, bool with_own);

void check_root(const Communicator& comm, int root);
void check_peers(const Communicator& comm, std::span<const PointToPoint> messages);
/// `ranks` are distinct ranks of `comm`, this one among them; returns this rank's position.
int position_in_group(const Communicator& comm, const std::vector<int>& ranks, const std::string& name);

/// Copies the elements; nothing where they are the same, or have no memory (kMeta).
void copy_elements(const Tensor& from, const Tensor& to);
/// The same on the device of `ctx`: on a GPU in the order of its compute stream.
void copy_elements(const Context& ctx, const Tensor& from, const Tensor& to);

}  // namespace trireme
