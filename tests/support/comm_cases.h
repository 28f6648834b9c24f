#pragma once
#include "parallel/comm/communicator.h"
#include "parallel/mesh.h"

namespace trireme {

// What every communicator must do, whatever carries it; called by all ranks of `comm`, each throws InternalError at the first wrong value.

/// All verbs, dtypes, reductions and in-place forms, at sizes that are no multiple of anything.
void check_verbs(Communicator& comm);
/// Several operations in flight, waited for in different orders on different ranks; sends before, with and after their receives.
void check_order(Communicator& comm);
/// Groups: reversed, split in two, nested, of one rank, two of one name.
void check_groups(Communicator& comm);
/// Sums of awkward numbers: the same bits on every rank and every time.
void check_same_bits(Communicator& comm);
void check_host_conveniences(Communicator& comm);
/// Every group of a mesh reaches exactly its members.
void check_mesh(Communicator& world, const MeshShape& shape, int kv_heads);

void check_communicator(Communicator& comm);  ///< all of the above but the mesh

}  // namespace trireme
