#pragma once
// What every communicator demands of the arguments of its verbs; each throws InternalError that names verb, group and rank.
#include <span>

#include "parallel/comm/communicator.h"

namespace trireme {

/// For all_gather (part = in, whole = out) and reduce_scatter (part = out, whole = in): whole has size() times the elements of part, in one dtype;
/// the two are apart or part is this rank's own part of whole. Returns true in the latter case. Meta tensors count as apart.
bool is_own_part(const Communicator& comm, const char* verb, const Tensor& part, const Tensor& whole);

/// Elements [rank * n, (rank + 1) * n) of `whole`, n = whole.numel() / size().
Tensor own_part(const Communicator& comm, const Tensor& whole);

void check_root(const Communicator& comm, int root);
void check_peers(const Communicator& comm, std::span<const PointToPoint> messages);
/// `ranks` are distinct ranks of `comm`, this one among them; returns this rank's position.
int position_in_group(const Communicator& comm, const std::vector<int>& ranks, const std::string& name);

/// Copies the elements; nothing where they are the same, or have no memory (kMeta).
void copy_elements(const Tensor& from, const Tensor& to);
/// The same on the device of `ctx`: on a GPU in the order of its compute stream.
void copy_elements(const Context& ctx, const Tensor& from, const Tensor& to);

}  // namespace trireme
