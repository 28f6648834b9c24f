#include "parallel/mesh.h"

#include <algorithm>
#include <iterator>

namespace trireme {
namespace {

constexpr size_t row_of(int MeshShape::*degree) {
  size_t row = 0;
  while (kMeshAxes[row].degree != degree) ++row;
  return row;
}

/// A group spans the rows [begin, end) of kMeshAxes.
struct GroupRow {
  const char* name;
  size_t begin, end;
};

constexpr GroupRow spanning(const char* name, int MeshShape::*first, int MeshShape::*last) { return {name, row_of(first), row_of(last) + 1}; }
constexpr GroupRow spanning(int MeshShape::*axis) { return spanning(kMeshAxes[row_of(axis)].name, axis, axis); }

/// In the order of MeshAxis.
constexpr GroupRow kGroups[kMeshGroups] = {
    {"world", 0, std::size(kMeshAxes)},
    spanning("step", &MeshShape::pipeline, &MeshShape::tensor),
    spanning(&MeshShape::islands),
    spanning(&MeshShape::pipeline),
    spanning("data", &MeshShape::replicate, &MeshShape::shard),
    spanning(&MeshShape::replicate),
    spanning("shard", &MeshShape::shard, &MeshShape::context),
    {"secondary", 0, 0},
    spanning(&MeshShape::context),
    spanning(&MeshShape::tensor),
    {"kv", 0, 0},
    {"embedding", 0, 0},
};

const GroupRow& row_of_group(MeshAxis axis) {
  const GroupRow& group = kGroups[static_cast<size_t>(axis)];
  TRIREME_CHECK(group.end > 0, name_of(axis), " groups do not span axes");
  return group;
}

int ranks_of_rows(const MeshShape& shape, size_t begin, size_t end) {
  int ranks = 1;
  for (size_t row = begin; row < end; ++row) ranks *= shape.*kMeshAxes[row].degree;
  return ranks;
}

MeshCoordinate coordinate_in(const MeshShape& shape, const Communicator& world) {
  TRIREME_CHECK(world.size() == shape.world(), "a mesh of ", shape.world(), " ranks does not match a world of ", world.size());
  return coordinate_of(shape, world.rank());
}

std::unique_ptr<Communicator> make_group(Communicator& world, const MeshShape& shape, MeshAxis axis, int kv_heads) {
  return world.group(group_members(shape, axis, world.rank(), kv_heads), name_of(axis));
}

/// Tensor ranks that hold the same kv heads are neighbours: head k is on ranks [k * copies, (k + 1) * copies).
int copies_of_kv_heads(const MeshShape& shape, int kv_heads) {
  if (kv_heads >= shape.tensor) return 1;
  TRIREME_CHECK(kv_heads > 0 && shape.tensor % kv_heads == 0, "tensor degree ", shape.tensor, " is not a multiple of ", kv_heads, " kv heads");
  return shape.tensor / kv_heads;
}

MeshGroup kv_group(const MeshShape& shape, int rank, int kv_heads) {
  const int copies = copies_of_kv_heads(shape, kv_heads), stride = stride_of(shape, MeshAxis::kTensor);
  return {rank - rank / stride % copies * stride, copies, stride};  // copies divides the tensor degree
}

MeshGroup secondary_group(const MeshShape& shape, int rank) {
  TRIREME_CHECK(degree_of(shape, MeshAxis::kShard) % shape.secondary == 0, "secondary shards do not divide the shards");
  const int stride = stride_of(shape, MeshAxis::kShard);
  return {rank - rank / stride % shape.secondary * stride, shape.secondary, stride};
}

MeshGroup embedding_group(const MeshShape& shape, int rank) {
  const MeshGroup all = group_of(shape, MeshAxis::kPipeline, rank, shape.tensor);
  const int last = all.first + (all.size - 1) * all.stride;
  if (all.size == 1 || (rank != all.first && rank != last)) return {rank, 1, 1};
  return {all.first, 2, last - all.first};
}

}  // namespace

const char* name_of(MeshAxis axis) { return kGroups[static_cast<size_t>(axis)].name; }

int MeshShape::world() const { return degree_of(*this, MeshAxis::kWorld); }

std::vector<MeshAxisRow> shown_axes(const MeshShape& shape) {
  std::vector<MeshAxisRow> shown;
  std::ranges::copy_if(kMeshAxes, std::back_inserter(shown), [&](const MeshAxisRow& row) { return row.always_shown || shape.*row.degree > 1; });
  return shown;
}

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  TRIREME_CHECK(rank >= 0 && rank < shape.world(), "rank ", rank, " is outside a mesh of size ", shape.world());
  MeshCoordinate at;
  for (size_t row = std::size(kMeshAxes); row > 0; --row) {
    const int degree = shape.*kMeshAxes[row - 1].degree;
    at.*kMeshAxes[row - 1].index = rank % degree;
    rank /= degree;
  }
  return at;
}

int rank_of(const MeshShape& shape, const MeshCoordinate& at) {
  int rank = 0;
  for (const MeshAxisRow& row : kMeshAxes) rank = rank * (shape.*row.degree) + at.*row.index;
  return rank;
}

int degree_of(const MeshShape& shape, MeshAxis axis) {
  if (axis == MeshAxis::kSecondary) return shape.secondary;
  const GroupRow& group = row_of_group(axis);
  return ranks_of_rows(shape, group.begin, group.end);
}

int stride_of(const MeshShape& shape, MeshAxis axis) {
  return ranks_of_rows(shape, row_of_group(axis == MeshAxis::kSecondary ? MeshAxis::kShard : axis).end, std::size(kMeshAxes));
}

MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  TRIREME_CHECK(rank >= 0 && rank < shape.world(), "rank ", rank, " is outside a mesh of size ", shape.world());
  if (axis == MeshAxis::kSecondary) return secondary_group(shape, rank);
  if (axis == MeshAxis::kKv) return kv_group(shape, rank, kv_heads);
  if (axis == MeshAxis::kEmbedding) return embedding_group(shape, rank);
  const int size = degree_of(shape, axis), stride = stride_of(shape, axis);
  return {rank - rank / stride % size * stride, size, stride};
}

std::vector<int> group_members(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  const MeshGroup group = group_of(shape, axis, rank, kv_heads);
  std::vector<int> members(static_cast<size_t>(group.size));
  for (int i = 0; i < group.size; ++i) members[static_cast<size_t>(i)] = group.first + i * group.stride;
  return members;
}

int device_groups(const MeshShape& shape, int rank, int kv_heads) {
  std::vector<MeshGroup> different;
  for (size_t axis = 0; axis < kMeshGroups; ++axis) {
    if (static_cast<MeshAxis>(axis) == MeshAxis::kData) continue;
    const MeshGroup group = group_of(shape, static_cast<MeshAxis>(axis), rank, kv_heads);
    if (group.size > 1 && std::ranges::count(different, group) == 0) different.push_back(group);
  }
  return static_cast<int>(different.size());
}

Mesh::Mesh(Communicator& world_, const MeshShape& shape_, int kv_heads)
    : shape(shape_),
      at(coordinate_in(shape_, world_)),
      world(world_),
      island(shape_.islands > 1 ? make_group(world_, shape_, MeshAxis::kStep, kv_heads) : nullptr),
      islands(make_group(world_, shape_, MeshAxis::kIslands, kv_heads)),
      pipeline(make_group(world_, shape_, MeshAxis::kPipeline, kv_heads)),
      data(world_.host_group(group_members(shape_, MeshAxis::kData, world_.rank(), kv_heads), name_of(MeshAxis::kData))),
      replicate(make_group(world_, shape_, MeshAxis::kReplicate, kv_heads)),
      shard(make_group(world_, shape_, MeshAxis::kShard, kv_heads)),
      secondary(make_group(world_, shape_, MeshAxis::kSecondary, kv_heads)),
      context(make_group(world_, shape_, MeshAxis::kContext, kv_heads)),
      tensor(make_group(world_, shape_, MeshAxis::kTensor, kv_heads)),
      kv(make_group(world_, shape_, MeshAxis::kKv, kv_heads)),
      embedding(make_group(world_, shape_, MeshAxis::kEmbedding, kv_heads)),
      step(island ? *island : world_) {}

}  // namespace trireme
