#include "parallel/mesh.h"

namespace trireme {
namespace {

MeshCoordinate coordinate_in(const MeshShape& shape, const Communicator& world) {
  TRIREME_CHECK(world.size() == shape.world(), "a mesh of ", shape.world(), " ranks in a world of ", world.size());
  return coordinate_of(shape, world.rank());
}

std::unique_ptr<Communicator> make_group(Communicator& world, const MeshShape& shape, MeshAxis axis, int kv_heads) {
  return world.group(group_members(shape, axis, world.rank(), kv_heads), name_of(axis));
}

// Tensor ranks that hold the same kv heads as tensor rank `at` are neighbours: head k lives on [k * copies, (k + 1) * copies).
bool share_kv_heads(const MeshShape& shape, int kv_heads, int at, int other) {
  if (kv_heads >= shape.tensor) return at == other;
  TRIREME_CHECK(kv_heads > 0 && shape.tensor % kv_heads == 0, "tensor ", shape.tensor, " with ", kv_heads, " kv heads");
  const int copies = shape.tensor / kv_heads;
  return at / copies == other / copies;
}

// `other` belongs to the same group of `axis` as `at`: equal in every coordinate but those the axis runs over.
bool same_group(const MeshShape& shape, MeshAxis axis, const MeshCoordinate& at, const MeshCoordinate& other, int kv_heads) {
  const bool pipeline = at.pipeline == other.pipeline, replicate = at.replicate == other.replicate;
  const bool shard = at.shard == other.shard, tensor = at.tensor == other.tensor;
  const auto on_end = [&](const MeshCoordinate& c) { return c.pipeline == 0 || c.pipeline == shape.pipeline - 1; };
  switch (axis) {
    case MeshAxis::kWorld: return true;
    case MeshAxis::kPipeline: return replicate && shard && tensor;
    case MeshAxis::kData: return pipeline && tensor;
    case MeshAxis::kReplicate: return pipeline && shard && tensor;
    case MeshAxis::kShard: return pipeline && replicate && tensor;
    case MeshAxis::kTensor: return pipeline && replicate && shard;
    case MeshAxis::kKv: return pipeline && replicate && shard && share_kv_heads(shape, kv_heads, at.tensor, other.tensor);
    case MeshAxis::kEmbedding: return replicate && shard && tensor && (pipeline || (on_end(at) && on_end(other)));
  }
  return false;
}

}  // namespace

const char* name_of(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kWorld: return "world";
    case MeshAxis::kPipeline: return "pipeline";
    case MeshAxis::kData: return "data";
    case MeshAxis::kReplicate: return "replicate";
    case MeshAxis::kShard: return "shard";
    case MeshAxis::kTensor: return "tensor";
    case MeshAxis::kKv: return "kv";
    case MeshAxis::kEmbedding: return "embedding";
  }
  return "?";
}

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  TRIREME_CHECK(rank >= 0 && rank < shape.world(), "rank ", rank, " in a mesh of ", shape.world());
  const int per_shard = shape.tensor, per_replica = per_shard * shape.shard, per_stage = per_replica * shape.replicate;
  return {rank / per_stage, rank % per_stage / per_replica, rank % per_replica / per_shard, rank % per_shard};
}

int rank_of(const MeshShape& shape, const MeshCoordinate& at) {
  return ((at.pipeline * shape.replicate + at.replicate) * shape.shard + at.shard) * shape.tensor + at.tensor;
}

std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  const MeshCoordinate at = coordinate_of(shape, rank);
  std::vector<int> members;
  for (int other = 0; other < shape.world(); ++other)
    if (same_group(shape, axis, at, coordinate_of(shape, other), kv_heads)) members.push_back(other);
  return members;
}

Mesh::Mesh(Communicator& world_, const MeshShape& shape_, int kv_heads)
    : shape(shape_),
      at(coordinate_in(shape_, world_)),
      world(world_),
      pipeline(make_group(world_, shape_, MeshAxis::kPipeline, kv_heads)),
      data(make_group(world_, shape_, MeshAxis::kData, kv_heads)),
      replicate(make_group(world_, shape_, MeshAxis::kReplicate, kv_heads)),
      shard(make_group(world_, shape_, MeshAxis::kShard, kv_heads)),
      tensor(make_group(world_, shape_, MeshAxis::kTensor, kv_heads)),
      kv(make_group(world_, shape_, MeshAxis::kKv, kv_heads)),
      embedding(make_group(world_, shape_, MeshAxis::kEmbedding, kv_heads)) {}

}  // namespace trireme
