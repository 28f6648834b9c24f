#pragma once
// The ranks of a job as a mesh whose axes are the rows of kMeshAxes, outermost first. Tensor ranks, which talk most, are neighbours
// (one node); pipeline ranks, which talk least, are farthest apart.
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// The degree of each axis. kMeshAxes orders the axes, not these members: {pipeline, replicate, shard, tensor} is a shape without context ranks.
struct MeshShape {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int tensor = 1;
  /// Ranks that divide the tokens of a sequence. No configuration sets it yet.
  int context = 1;
  /// Ranks that divide the samples.
  int data() const { return replicate * shard; }
  int world() const;
};

struct MeshCoordinate {
  int pipeline = 0;
  int replicate = 0;
  int shard = 0;
  int tensor = 0;
  int context = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

struct MeshAxisRow {
  const char* name;
  int MeshShape::*degree;
  int MeshCoordinate::*index;
  bool always_shown;  ///< else texts and manifests name the axis only where its degree exceeds 1, and those of other layouts stay as they were
};
/// Outermost first. A new axis is a member of MeshShape and of MeshCoordinate, and a row here.
inline constexpr MeshAxisRow kMeshAxes[] = {
    {"pipeline", &MeshShape::pipeline, &MeshCoordinate::pipeline, true},
    {"replicate", &MeshShape::replicate, &MeshCoordinate::replicate, true},
    {"shard", &MeshShape::shard, &MeshCoordinate::shard, true},
    {"context", &MeshShape::context, &MeshCoordinate::context, false},
    {"tensor", &MeshShape::tensor, &MeshCoordinate::tensor, true},
};
/// The rows that texts and manifests name, in the order of the table.
std::vector<MeshAxisRow> shown_axes(const MeshShape& shape);

/// Groups of ranks. A group spans one row of kMeshAxes or several successive ones: kData replicate and shard, kShard shard and context (the ranks
/// that divide parameters). kKv and kEmbedding lie within a group of kTensor and of kPipeline.
enum class MeshAxis : uint8_t { kWorld, kPipeline, kData, kReplicate, kShard, kContext, kTensor, kKv, kEmbedding };
inline constexpr size_t kMeshGroups = static_cast<size_t>(MeshAxis::kEmbedding) + 1;
const char* name_of(MeshAxis axis);

/// Errors: InternalError for a rank outside the mesh.
MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& at);

/// Ranks in a group of `axis`, and the distance between two successive ones. Errors: InternalError for kKv and kEmbedding, whose groups differ.
int degree_of(const MeshShape& shape, MeshAxis axis);
int stride_of(const MeshShape& shape, MeshAxis axis);

/// Ranks first, first + stride, ..., `size` of them.
struct MeshGroup {
  int first = 0;
  int size = 1;
  int stride = 1;
};
/// The group of `axis` that `rank` belongs to. kKv: the tensor ranks that hold the same kv heads (one rank where kv_heads >= tensor). kEmbedding:
/// first and last pipeline rank (just this rank when it is neither). Errors: InternalError for a rank outside the mesh.
MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// World ranks of the group of `axis` that `rank` belongs to, ascending.
std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// This rank's communicators, all made eagerly, in the order of MeshAxis, by the constructor (collective over the world).
struct Mesh {
  Mesh(Communicator& world, const MeshShape& shape, int kv_heads);
  MeshShape shape;
  MeshCoordinate at;
  Communicator& world;
  std::unique_ptr<Communicator> pipeline, data, replicate, shard, context, tensor, kv, embedding;
  /// The ranks that step together: they sum gradient norm and loss, and so clip, accept or reject a step and lower the loss scale alike. It is the
  /// world. It has a name of its own because islands of replicas that diverge between synchronisations could step alone.
  Communicator& step;
};

}  // namespace trireme
