#include <algorithm>
#include <set>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "parallel/mesh.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

using Ranks = std::vector<int>;

const MeshAxis kAxes[] = {MeshAxis::kWorld, MeshAxis::kStep,      MeshAxis::kIslands, MeshAxis::kPipeline, MeshAxis::kData, MeshAxis::kReplicate,
                          MeshAxis::kShard, MeshAxis::kSecondary, MeshAxis::kContext, MeshAxis::kTensor,   MeshAxis::kKv,   MeshAxis::kEmbedding};

/// Degrees of up to four each.
std::vector<MeshShape> shapes_up_to(int world, const Ranks& contexts = {1}, const Ranks& islands = {1}) {
  std::vector<MeshShape> shapes;
  for (int pipeline = 1; pipeline <= 4; ++pipeline)
    for (int replicate = 1; replicate <= 4; ++replicate)
      for (int shard = 1; shard <= 4; ++shard)
        for (int tensor = 1; tensor <= 4; ++tensor)
          for (const int context : contexts)
            for (const int count : islands)
              if (const MeshShape shape{pipeline, replicate, shard, tensor, context, count}; shape.world() <= world) shapes.push_back(shape);
  return shapes;
}

/// Numbers of kv heads that a tensor degree allows: every divisor, and a multiple.
Ranks legal_kv_heads(int tensor) {
  Ranks heads{2 * tensor};
  for (int count = 1; count <= tensor; ++count)
    if (tensor % count == 0) heads.push_back(count);
  return heads;
}

int size_of_group(const MeshShape& shape, MeshAxis axis, const MeshCoordinate& at, int kv_heads) {
  switch (axis) {
    case MeshAxis::kWorld: return shape.world();
    case MeshAxis::kStep: return shape.world() / shape.islands;
    case MeshAxis::kIslands: return shape.islands;
    case MeshAxis::kPipeline: return shape.pipeline;
    case MeshAxis::kData: return shape.data();
    case MeshAxis::kReplicate: return shape.replicate;
    case MeshAxis::kShard: return shape.shard * shape.context;
    case MeshAxis::kSecondary: return shape.secondary;
    case MeshAxis::kContext: return shape.context;
    case MeshAxis::kTensor: return shape.tensor;
    case MeshAxis::kKv: return kv_heads >= shape.tensor ? 1 : shape.tensor / kv_heads;
    case MeshAxis::kEmbedding: return shape.pipeline > 1 && (at.pipeline == 0 || at.pipeline == shape.pipeline - 1) ? 2 : 1;
  }
  return 0;
}

std::string text_of(const MeshShape& s) { return concat(s.islands, "x", s.pipeline, "x", s.replicate, "x", s.shard, "x", s.context, "x", s.tensor); }

/// Ranks whose coordinates differ from those of `rank` at most on the axes that a group of `axis` spans, in ascending order.
Ranks members_by_coordinates(const MeshShape& shape, MeshAxis axis, int rank) {
  const MeshCoordinate own = coordinate_of(shape, rank);
  Ranks members;
  for (int other = 0; other < shape.world(); ++other) {
    MeshCoordinate at = coordinate_of(shape, other);
    const bool whole = axis == MeshAxis::kWorld, world = whole || axis == MeshAxis::kStep, data = axis == MeshAxis::kData,
               shard = axis == MeshAxis::kShard;
    if (whole || axis == MeshAxis::kIslands) at.island = own.island;
    if (world || axis == MeshAxis::kPipeline) at.pipeline = own.pipeline;
    if (world || axis == MeshAxis::kReplicate || data) at.replicate = own.replicate;
    if (world || shard || data) at.shard = own.shard;
    if (world || axis == MeshAxis::kContext || shard) at.context = own.context;
    if (world || axis == MeshAxis::kTensor) at.tensor = own.tensor;
    if (at == own) members.push_back(other);
  }
  return members;
}

/// Coordinates and groups of the mesh of four axes, without kContext, by formulas that are independent of kMeshAxes.
namespace four_axes {

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  const int per_shard = shape.tensor, per_replica = per_shard * shape.shard, per_stage = per_replica * shape.replicate;
  return {rank / per_stage, rank % per_stage / per_replica, rank % per_replica / per_shard, rank % per_shard};
}

MeshGroup group_of(const MeshShape& shape, MeshAxis axis, int rank, int kv_heads) {
  const int per_replica = shape.tensor * shape.shard, per_stage = per_replica * shape.replicate;
  const MeshCoordinate at = four_axes::coordinate_of(shape, rank);
  switch (axis) {
    case MeshAxis::kWorld:
    case MeshAxis::kStep: return {0, shape.world(), 1};
    case MeshAxis::kIslands: return {rank, 1, shape.world()};
    case MeshAxis::kPipeline: return {rank - at.pipeline * per_stage, shape.pipeline, per_stage};
    case MeshAxis::kData: return {rank - at.replicate * per_replica - at.shard * shape.tensor, shape.replicate * shape.shard, shape.tensor};
    case MeshAxis::kReplicate: return {rank - at.replicate * per_replica, shape.replicate, per_replica};
    case MeshAxis::kShard: return {rank - at.shard * shape.tensor, shape.shard, shape.tensor};
    case MeshAxis::kSecondary: return {rank, 1, shape.tensor};
    case MeshAxis::kContext: return {rank, 1, shape.tensor};
    case MeshAxis::kTensor: return {rank - at.tensor, shape.tensor, 1};
    case MeshAxis::kKv: {
      const int copies = kv_heads >= shape.tensor ? 1 : shape.tensor / kv_heads;
      return {rank - at.tensor % copies, copies, 1};
    }
    case MeshAxis::kEmbedding: break;
  }
  const bool apart = shape.pipeline > 1 && (at.pipeline == 0 || at.pipeline == shape.pipeline - 1);
  return apart ? MeshGroup{rank - at.pipeline * per_stage, 2, (shape.pipeline - 1) * per_stage} : MeshGroup{rank, 1, 1};
}

}  // namespace four_axes

}  // namespace

TEST_CASE("without context ranks a mesh has the ranks and groups of its four axes") {
  for (const MeshShape& shape : shapes_up_to(64)) {
    CAPTURE(text_of(shape));
    bool same = true;
    for (int rank = 0; rank < shape.world(); ++rank) {
      same = same && coordinate_of(shape, rank) == four_axes::coordinate_of(shape, rank);
      for (const MeshAxis axis : kAxes) {
        for (const int kv_heads : legal_kv_heads(shape.tensor)) {
          const MeshGroup got = group_of(shape, axis, rank, kv_heads), want = four_axes::group_of(shape, axis, rank, kv_heads);
          same = same && got.first == want.first && got.size == want.size && got.stride == want.stride;
        }
      }
    }
    CHECK(same);
  }
}

TEST_CASE("context ranks lie between shards and tensor ranks, and divide parameters with the shards") {
  const MeshShape shape{2, 2, 2, 2, 2};  // rank 27 = pipeline 1, replicate 1, shard 0, context 1, tensor 1
  CHECK(coordinate_of(shape, 27) == MeshCoordinate{1, 1, 0, 1, 1});
  CHECK(group_members(shape, MeshAxis::kContext, 27, 2) == Ranks{25, 27});
  CHECK(group_members(shape, MeshAxis::kShard, 27, 2) == Ranks{25, 27, 29, 31});
  CHECK(group_members(shape, MeshAxis::kData, 27, 2) == Ranks{19, 23, 27, 31});
  CHECK(group_members(shape, MeshAxis::kReplicate, 27, 2) == Ranks{19, 27});
  CHECK(group_members(shape, MeshAxis::kEmbedding, 27, 2) == Ranks{11, 27});
  CHECK((degree_of(shape, MeshAxis::kShard) == 4 && stride_of(shape, MeshAxis::kShard) == 2));
  CHECK((degree_of(shape, MeshAxis::kData) == 4 && stride_of(shape, MeshAxis::kData) == 4));
  CHECK_THROWS_AS(degree_of(shape, MeshAxis::kKv), InternalError);
  CHECK_THROWS_AS(stride_of(shape, MeshAxis::kEmbedding), InternalError);
}

TEST_CASE("a group has the ranks that differ on its axes alone, at the stride of its innermost axis") {
  for (const MeshShape& shape : shapes_up_to(48, {1, 2, 3}, {1, 2, 3})) {
    CAPTURE(text_of(shape));
    bool right = true;
    for (const MeshAxis axis : kAxes) {
      // Parts of the shard, the tensor and the pipeline group.
      if (axis == MeshAxis::kSecondary || axis == MeshAxis::kKv || axis == MeshAxis::kEmbedding) continue;
      for (int rank = 0; rank < shape.world(); ++rank) {
        const Ranks want = members_by_coordinates(shape, axis, rank);
        const MeshGroup group = group_of(shape, axis, rank, 1);
        right = right && group_members(shape, axis, rank, 1) == want && group.first == want.front();
        right = right && degree_of(shape, axis) == group.size && stride_of(shape, axis) == group.stride;
        right = right && (want.size() == 1 || want[1] - want[0] == group.stride);
      }
    }
    CHECK(right);
  }
}

TEST_CASE("islands are outermost, and all other groups lie within one") {
  const MeshShape shape{
      .pipeline = 2, .replicate = 2, .shard = 1, .tensor = 2, .islands = 3};  // rank 13 = island 1, pipeline 1, replicate 0, tensor 1
  CHECK(coordinate_of(shape, 13) == MeshCoordinate{.pipeline = 1, .tensor = 1, .island = 1});
  CHECK(group_members(shape, MeshAxis::kIslands, 13, 2) == Ranks{5, 13, 21});
  CHECK(group_members(shape, MeshAxis::kStep, 13, 2) == Ranks{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(group_members(shape, MeshAxis::kPipeline, 13, 2) == Ranks{9, 13});
  CHECK(group_members(shape, MeshAxis::kData, 13, 2) == Ranks{13, 15});
  CHECK(group_members(shape, MeshAxis::kEmbedding, 13, 2) == Ranks{9, 13});
  CHECK(device_groups(shape, 13, 2) == 6);  // world, step, islands, pipeline with embedding, replicate, tensor
}

TEST_CASE("texts name the context axis only where a sequence is divided") {
  const auto names = [](const MeshShape& shape) {
    std::string text;
    for (const MeshAxisRow& row : shown_axes(shape)) text += concat(row.name, " ", shape.*row.degree, " ");
    return text;
  };
  CHECK(names({2, 1, 3, 4}) == "pipeline 2 replicate 1 shard 3 tensor 4 ");
  CHECK(names({2, 1, 3, 4, 1, 2}) == "islands 2 pipeline 2 replicate 1 shard 3 tensor 4 ");
  CHECK(names({2, 1, 3, 4, 2}) == "pipeline 2 replicate 1 shard 3 context 2 tensor 4 ");
}

TEST_CASE("rank and coordinate are inverse, tensor innermost") {
  for (const MeshShape& shape : shapes_up_to(64, {1, 2}, {1, 2})) {
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < shape.world(); ++rank) {
      const MeshCoordinate at = coordinate_of(shape, rank);
      CHECK(rank_of(shape, at) == rank);
      CHECK((at.pipeline < shape.pipeline && at.replicate < shape.replicate && at.shard < shape.shard && at.context < shape.context &&
             at.tensor < shape.tensor && at.island < shape.islands));
      seen.insert({at.island, at.pipeline, at.replicate, at.shard, at.context, at.tensor});
    }
    CHECK(static_cast<int>(seen.size()) == shape.world());
  }
  CHECK(coordinate_of({2, 3, 5, 7}, 1) == MeshCoordinate{0, 0, 0, 1});
  CHECK(coordinate_of({2, 3, 5, 7}, 7) == MeshCoordinate{0, 0, 1, 0});
  CHECK(coordinate_of({2, 3, 5, 7}, 35) == MeshCoordinate{0, 1, 0, 0});
  CHECK(coordinate_of({2, 3, 5, 7}, 105) == MeshCoordinate{1, 0, 0, 0});
  CHECK_THROWS_AS(coordinate_of({2, 1, 1, 1}, 2), InternalError);
}

TEST_CASE("groups of a mesh, by hand") {
  const MeshShape shape{2, 2, 2, 2};  // rank 13 = pipeline 1, replicate 1, shard 0, tensor 1
  CHECK(group_members(shape, MeshAxis::kWorld, 13, 2).size() == 16);
  CHECK(group_members(shape, MeshAxis::kPipeline, 13, 2) == Ranks{5, 13});
  CHECK(group_members(shape, MeshAxis::kData, 13, 2) == Ranks{9, 11, 13, 15});
  CHECK(group_members(shape, MeshAxis::kReplicate, 13, 2) == Ranks{9, 13});
  CHECK(group_members(shape, MeshAxis::kShard, 13, 2) == Ranks{13, 15});
  CHECK(group_members(shape, MeshAxis::kTensor, 13, 2) == Ranks{12, 13});
  CHECK(group_members(shape, MeshAxis::kKv, 13, 2) == Ranks{13});
  CHECK(group_members(shape, MeshAxis::kKv, 13, 1) == Ranks{12, 13});
  CHECK(group_members(shape, MeshAxis::kEmbedding, 13, 2) == Ranks{5, 13});
}

TEST_CASE("groups are found without listing the ranks of the world") {
  const MeshShape shape{4, 2, 1 << 24, 2};  // a list of all its ranks for each of a few hundred groups would take minutes
  const int first = 7, last = shape.world() - 5;
  size_t members = 0;
  for (int i = 0; i < 200; ++i)
    for (const MeshAxis axis : {MeshAxis::kPipeline, MeshAxis::kReplicate, MeshAxis::kTensor, MeshAxis::kKv, MeshAxis::kEmbedding})
      for (const int rank : {first + 2 * i, last - 2 * i}) members += group_members(shape, axis, rank, 2).size();
  CHECK(members == 2 * 200 * (4 + 2 + 2 + 1 + 2));
  CHECK(group_members(shape, MeshAxis::kPipeline, first, 2) == Ranks{7, 7 + (1 << 26), 7 + (1 << 27), 7 + 3 * (1 << 26)});
  CHECK(group_of(shape, MeshAxis::kData, last, 2).size == 1 << 25);
}

TEST_CASE("secondary groups are neighbours of a shard group") {
  const MeshShape shape{
      .pipeline = 2, .replicate = 2, .shard = 4, .tensor = 2, .secondary = 2};  // rank 27 = pipeline 1, replicate 1, shard 1, tensor 1
  CHECK(group_members(shape, MeshAxis::kShard, 27, 2) == Ranks{25, 27, 29, 31});
  CHECK(group_members(shape, MeshAxis::kSecondary, 27, 2) == Ranks{25, 27});
  CHECK(group_members(shape, MeshAxis::kSecondary, 31, 2) == Ranks{29, 31});
  CHECK((degree_of(shape, MeshAxis::kSecondary) == 2 && stride_of(shape, MeshAxis::kSecondary) == 2));
  CHECK(device_groups(shape, 27, 2) == device_groups({.pipeline = 2, .replicate = 2, .shard = 4, .tensor = 2}, 27, 2) + 1);
}

TEST_CASE("kv groups are the neighbours that hold the same heads") {
  const MeshShape shape{1, 1, 2, 4};
  CHECK(group_members(shape, MeshAxis::kKv, 5, 2) == Ranks{4, 5});
  CHECK(group_members(shape, MeshAxis::kKv, 6, 2) == Ranks{6, 7});
  CHECK(group_members(shape, MeshAxis::kKv, 6, 1) == Ranks{4, 5, 6, 7});
  CHECK(group_members(shape, MeshAxis::kKv, 6, 4) == Ranks{6});
  CHECK(group_members(shape, MeshAxis::kKv, 6, 8) == Ranks{6});
  CHECK_THROWS_AS(group_members(shape, MeshAxis::kKv, 6, 3), InternalError);
}

TEST_CASE("the embedding group joins first and last stage") {
  CHECK(group_members({1, 1, 1, 2}, MeshAxis::kEmbedding, 1, 2) == Ranks{1});
  CHECK(group_members({2, 1, 1, 2}, MeshAxis::kEmbedding, 1, 2) == Ranks{1, 3});
  const MeshShape four{4, 1, 1, 2};
  CHECK(group_members(four, MeshAxis::kEmbedding, 0, 2) == Ranks{0, 6});
  CHECK(group_members(four, MeshAxis::kEmbedding, 7, 2) == Ranks{1, 7});
  CHECK(group_members(four, MeshAxis::kEmbedding, 2, 2) == Ranks{2});
  CHECK(group_members(four, MeshAxis::kEmbedding, 5, 2) == Ranks{5});
}

TEST_CASE("the groups of an axis divide the world") {
  for (const MeshShape& shape : shapes_up_to(24, {1, 2}, {1, 2})) {
    for (const int kv_heads : legal_kv_heads(shape.tensor)) {
      for (const MeshAxis axis : kAxes) {
        for (int rank = 0; rank < shape.world(); ++rank) {
          const Ranks members = group_members(shape, axis, rank, kv_heads);
          const bool sizes = static_cast<int>(members.size()) == size_of_group(shape, axis, coordinate_of(shape, rank), kv_heads);
          const bool ascending = std::is_sorted(members.begin(), members.end());
          const bool own = std::count(members.begin(), members.end(), rank) == 1;
          bool agreed = true;  // all members see the same group
          for (const int other : members) agreed = agreed && group_members(shape, axis, other, kv_heads) == members;
          INFO(name_of(axis) << " of " << text_of(shape) << " rank " << rank);
          if (!(sizes && ascending && own && agreed)) FAIL_CHECK("wrong group");
        }
      }
    }
  }
}

TEST_CASE("a mesh of threads reaches exactly its members") {
  for (const MeshShape& shape : shapes_up_to(8, {1, 2}, {1, 2}))
    for (const int kv_heads : legal_kv_heads(shape.tensor))
      CHECK_NOTHROW(run_ranks(shape.world(), [&](Communicator& world) { check_mesh(world, shape, kv_heads); }));
}

TEST_CASE("groups of one rank are self communicators") {
  run_ranks(2, [](Communicator& world) {
    const Mesh mesh(world, {1, 1, 1, 2}, 2);
    for (const auto* group : {&mesh.islands, &mesh.pipeline, &mesh.data, &mesh.replicate, &mesh.shard, &mesh.context, &mesh.kv, &mesh.embedding})
      TRIREME_CHECK(dynamic_cast<SelfCommunicator*>(group->get()) != nullptr, (*group)->name());
    TRIREME_CHECK(dynamic_cast<SelfCommunicator*>(mesh.tensor.get()) == nullptr, "tensor");
  });
  NullCommunicator world(5, 8, "world");
  const Mesh mesh(world, {2, 1, 2, 2}, 2);
  CHECK(dynamic_cast<NullCommunicator*>(mesh.replicate.get()) != nullptr);
  CHECK((mesh.tensor->rank() == 1 && mesh.tensor->size() == 2));
  CHECK(mesh.at == MeshCoordinate{1, 0, 0, 1});
}

TEST_CASE("a mesh refuses a world of another size") {
  SelfCommunicator world("world");
  CHECK_THROWS_AS(Mesh(world, {1, 1, 1, 2}, 2), InternalError);
}
