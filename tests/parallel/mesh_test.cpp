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

const MeshAxis kAxes[] = {MeshAxis::kWorld, MeshAxis::kPipeline, MeshAxis::kData, MeshAxis::kReplicate,
                          MeshAxis::kShard, MeshAxis::kTensor,   MeshAxis::kKv,   MeshAxis::kEmbedding};

std::vector<MeshShape> shapes_up_to(int world) {
  std::vector<MeshShape> shapes;
  for (int pipeline = 1; pipeline <= 4; ++pipeline)
    for (int replicate = 1; replicate <= 4; ++replicate)
      for (int shard = 1; shard <= 4; ++shard)
        for (int tensor = 1; tensor <= 4; ++tensor)
          if (const MeshShape shape{pipeline, replicate, shard, tensor}; shape.world() <= world) shapes.push_back(shape);
  return shapes;
}

/// kv heads that a tensor degree may meet: every divisor, and a multiple.
Ranks legal_kv_heads(int tensor) {
  Ranks heads{2 * tensor};
  for (int count = 1; count <= tensor; ++count)
    if (tensor % count == 0) heads.push_back(count);
  return heads;
}

int size_of_group(const MeshShape& shape, MeshAxis axis, const MeshCoordinate& at, int kv_heads) {
  switch (axis) {
    case MeshAxis::kWorld: return shape.world();
    case MeshAxis::kPipeline: return shape.pipeline;
    case MeshAxis::kData: return shape.data();
    case MeshAxis::kReplicate: return shape.replicate;
    case MeshAxis::kShard: return shape.shard;
    case MeshAxis::kTensor: return shape.tensor;
    case MeshAxis::kKv: return kv_heads >= shape.tensor ? 1 : shape.tensor / kv_heads;
    case MeshAxis::kEmbedding: return shape.pipeline > 1 && (at.pipeline == 0 || at.pipeline == shape.pipeline - 1) ? 2 : 1;
  }
  return 0;
}

}  // namespace

TEST_CASE("rank and coordinate are inverse, tensor innermost") {
  for (const MeshShape& shape : shapes_up_to(64)) {
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < shape.world(); ++rank) {
      const MeshCoordinate at = coordinate_of(shape, rank);
      CHECK(rank_of(shape, at) == rank);
      CHECK((at.pipeline < shape.pipeline && at.replicate < shape.replicate && at.shard < shape.shard && at.tensor < shape.tensor));
      seen.insert({at.pipeline, at.replicate, at.shard, at.tensor});
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

TEST_CASE("groups of a world that nobody could list are found as those of a small one") {
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
  for (const MeshShape& shape : shapes_up_to(24)) {
    for (const int kv_heads : legal_kv_heads(shape.tensor)) {
      for (const MeshAxis axis : kAxes) {
        for (int rank = 0; rank < shape.world(); ++rank) {
          const Ranks members = group_members(shape, axis, rank, kv_heads);
          const bool sizes = static_cast<int>(members.size()) == size_of_group(shape, axis, coordinate_of(shape, rank), kv_heads);
          const bool ascending = std::is_sorted(members.begin(), members.end());
          const bool own = std::count(members.begin(), members.end(), rank) == 1;
          bool agreed = true;  // all members see the same group
          for (const int other : members) agreed = agreed && group_members(shape, axis, other, kv_heads) == members;
          INFO(name_of(axis) << " of " << shape.pipeline << "x" << shape.replicate << "x" << shape.shard << "x" << shape.tensor << " rank " << rank);
          if (!(sizes && ascending && own && agreed)) FAIL_CHECK("wrong group");
        }
      }
    }
  }
}

TEST_CASE("a mesh of threads reaches exactly its members") {
  for (const MeshShape& shape : shapes_up_to(8))
    for (const int kv_heads : legal_kv_heads(shape.tensor))
      CHECK_NOTHROW(run_ranks(shape.world(), [&](Communicator& world) { check_mesh(world, shape, kv_heads); }));
}

TEST_CASE("groups of one rank cost nothing") {
  run_ranks(2, [](Communicator& world) {
    const Mesh mesh(world, {1, 1, 1, 2}, 2);
    for (const auto* group : {&mesh.pipeline, &mesh.data, &mesh.replicate, &mesh.shard, &mesh.kv, &mesh.embedding})
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
