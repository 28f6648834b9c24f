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

/// Tensor ranks that hold the same kv heads are neighbours: head k lives on [k * copies, (k + 1) * copies).
int copies_of_kv_heads(const MeshShape& shape, int kv_heads) {
  if (kv_heads >= shape.tensor) return 1;
  TRIREME_CHECK(kv_heads > 0 && shape.tensor % kv_heads == 0, "tensor ", shape.tensor, " with ", kv_heads, " kv heads");
  return shape.tensor / kv_heads;
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

MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  MeshCoordinate first = coordinate_of(shape, rank);
  const int per_replica = shape.tensor * shape.shard, per_stage = per_replica * shape.replicate;
  const auto from = [&](int size, int stride) { return MeshGroup{rank_of(shape, first), size, stride}; };
  switch (axis) {
    case MeshAxis::kWorld: return {0, shape.world(), 1};
    case MeshAxis::kPipeline: first.pipeline = 0; return from(shape.pipeline, per_stage);
    case MeshAxis::kData: first.replicate = first.shard = 0; return from(shape.data(), shape.tensor);
    case MeshAxis::kReplicate: first.replicate = 0; return from(shape.replicate, per_replica);
    case MeshAxis::kShard: first.shard = 0; return from(shape.shard, shape.tensor);
    case MeshAxis::kTensor: first.tensor = 0; return from(shape.tensor, 1);
    case MeshAxis::kKv: {
      const int copies = copies_of_kv_heads(shape, kv_heads);
      first.tensor -= first.tensor % copies;
      return from(copies, 1);
    }
    case MeshAxis::kEmbedding: break;
  }
  const bool apart = shape.pipeline > 1 && (first.pipeline == 0 || first.pipeline == shape.pipeline - 1);
  if (!apart) return {rank, 1, 1};
  first.pipeline = 0;
  return from(2, (shape.pipeline - 1) * per_stage);
}

std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  const MeshGroup group = group_of(shape, axis, rank, kv_heads);
  std::vector<int> members(static_cast<size_t>(group.size));
  for (int i = 0; i < group.size; ++i) members[static_cast<size_t>(i)] = group.first + i * group.stride;
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
