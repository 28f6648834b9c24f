#pragma once
// The ranks of a job as a four-axis mesh, outermost first: pipeline, replicate, shard, tensor. Tensor ranks, which talk most, are neighbours
// (one node); pipeline ranks, which talk least, are farthest apart. `data` = replicate x shard.
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

struct MeshShape {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int tensor = 1;
  int data() const { return replicate * shard; }
  int world() const { return pipeline * replicate * shard * tensor; }
};

struct MeshCoordinate {
  int pipeline = 0;
  int replicate = 0;
  int shard = 0;
  int tensor = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

enum class MeshAxis : uint8_t { kWorld, kPipeline, kData, kReplicate, kShard, kTensor, kKv, kEmbedding };
const char* name_of(MeshAxis axis);

MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& at);

/// Ranks first, first + stride, ..., `size` of them.
struct MeshGroup {
  int first = 0;
  int size = 1;
  int stride = 1;
};
/// The group of `axis` that `rank` belongs to. kKv: the tensor ranks that hold the same kv heads (one rank where kv_heads >= tensor). kEmbedding:
/// first and last pipeline rank (just this rank when it is neither).
MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// World ranks of the group of `axis` that `rank` belongs to, ascending.
std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads);

/// This rank's communicators, all made eagerly, in the order of MeshAxis, by the constructor (collective over the world).
struct Mesh {
  Mesh(Communicator& world, const MeshShape& shape, int kv_heads);
  MeshShape shape;
  MeshCoordinate at;
  Communicator& world;
  std::unique_ptr<Communicator> pipeline, data, replicate, shard, tensor, kv, embedding;
};

}  // namespace trireme
