#pragma once
// The ranks of a job form a mesh. Its axes are the rows of kMeshAxes, outermost first: tensor ranks communicate most and are neighbours
// (same node); pipeline ranks communicate less and are farther apart; islands exchange nothing within a step.
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/shard_group.h"

namespace trireme {

/// The degree of each axis. kMeshAxes orders the axes, not these members: {pipeline, replicate, shard, tensor} is a shape without context ranks.
struct MeshShape {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int tensor = 1;
  /// Context-parallel ranks, which split the tokens of a sequence. No configuration sets it yet.
  int context = 1;
  /// Groups of ranks that each train a copy of the model and take steps alone between two synchronisations.
  int islands = 1;
  /// Neighbours of a kShard group that together keep a second copy of the gathered parameters (ParamStore). Divides the ranks of that group.
  int secondary = 1;
  /// Data-parallel ranks of one island, which split the samples of its batch.
  int data() const { return replicate * shard; }
  int world() const;
};

struct MeshCoordinate {
  int pipeline = 0;
  int replicate = 0;
  int shard = 0;
  int tensor = 0;
  int context = 0;
  int island = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

struct MeshAxisRow {
  const char* name;
  int MeshShape::*degree;
  int MeshCoordinate::*index;
  bool always_shown;  ///< false: texts and manifests name the axis only if its degree exceeds 1, so that those of other layouts do not change
};
/// Outermost first. A new axis is a member of MeshShape and of MeshCoordinate, and a row here.
// clang-format off
inline constexpr MeshAxisRow kMeshAxes[] = {
    {"islands", &MeshShape::islands, &MeshCoordinate::island, false},
    {"pipeline", &MeshShape::pipeline, &MeshCoordinate::pipeline, true},
    {"replicate", &MeshShape::replicate, &MeshCoordinate::replicate, true},
    {"shard", &MeshShape::shard, &MeshCoordinate::shard, true},
    {"context", &MeshShape::context, &MeshCoordinate::context, false},
    {"tensor", &MeshShape::tensor, &MeshCoordinate::tensor, true},
};
// clang-format on
/// The rows that texts and manifests name, in the order of the table.
std::vector<MeshAxisRow> shown_axes(const MeshShape& shape);

/// Groups of ranks. A group spans one row of kMeshAxes or several successive ones: kStep spans all but islands (the ranks of one island), kData
/// replicate and shard, kShard shard and context (the ranks that shard parameters). A kSecondary group is a subset of a kShard group, a kKv group of a
/// kTensor group, a kEmbedding group of a kPipeline group.
enum class MeshAxis : uint8_t { kWorld, kStep, kIslands, kPipeline, kData, kReplicate, kShard, kSecondary, kContext, kTensor, kKv, kEmbedding };
inline constexpr size_t kMeshGroups = static_cast<size_t>(MeshAxis::kEmbedding) + 1;
const char* name_of(MeshAxis axis);

/// Errors: InternalError for a rank outside the mesh.
MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& at);

/// Number of ranks in a group of `axis`, and the rank distance between two successive members. Errors: InternalError for kKv and kEmbedding, whose
/// groups differ in size.
int degree_of(const MeshShape& shape, MeshAxis axis);
int stride_of(const MeshShape& shape, MeshAxis axis);

/// Ranks first, first + stride, ..., `size` of them.
struct MeshGroup {
  int first = 0;
  int size = 1;
  int stride = 1;
  bool operator==(const MeshGroup&) const = default;
};
/// The group of `axis` that `rank` belongs to. kKv: the tensor ranks that hold the same kv heads (one rank where kv_heads >= tensor). kEmbedding:
/// first and last pipeline rank (only this rank if it is neither). Errors: InternalError for a rank outside the mesh.
MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// World ranks of the group of `axis` that `rank` belongs to, ascending.
std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// Number of different groups of several ranks over which the Mesh of `rank` communicates device tensors, the world included: that of its NCCL
/// communicators, which groups of the same ranks share.
int device_groups(const MeshShape& shape, int rank, int kv_heads);

/// This rank's communicators. `data` carries tensors in host memory only (Communicator::host_group): it counts tokens, compares digests, sums
/// the factors of low-rank gradients and exchanges copies of gradients for robust rules. The constructor creates all of them, in the order of MeshAxis;
/// it is collective over the world.
struct Mesh {
  Mesh(Communicator& world, const MeshShape& shape, int kv_heads);
  MeshShape shape;
  MeshCoordinate at;
  Communicator& world;
  std::unique_ptr<Communicator> island;  ///< kStep, if there are several islands, else null: the world is the only island
  std::unique_ptr<Communicator> islands, pipeline, data, replicate, shard, secondary, context, tensor, kv, embedding;
  /// The group of the units that all data ranks share.
  ShardGroup shard_group() const { return {shard.get(), replicate.get(), data.get(), secondary.get()}; }
  /// The ranks that take optimizer steps together, those of one island. They all-reduce gradient norm and loss and therefore agree on clipping,
  /// acceptance of the step and loss scale.
  Communicator& step;
};

}  // namespace trireme
