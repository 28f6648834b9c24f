#pragma once
#include "parallel/comm/communicator.h"
#include "parallel/mesh.h"

namespace trireme {

// Conformance checks for any communicator. Called by all ranks of `comm`; each throws InternalError at the first wrong value.

/// All verbs, dtypes, reductions and in-place forms; several operations in flight; groups of groups; equal bits; the host helpers.
void check_communicator(Communicator& comm);
/// The same on tensors of `ctx`, for example of a GPU; its arena should poison.
void check_communicator_on(Context& ctx, Communicator& comm);
/// Every group of a mesh reaches exactly its members.
void check_mesh(Communicator& world, const MeshShape& shape, int kv_heads);

}  // namespace trireme
