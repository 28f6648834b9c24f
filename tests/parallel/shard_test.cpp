// Shards of a unit: equal parts of its flat buffer that start at aligned addresses, for every number of shards.
#include <cstdint>

#include "parallel/comm/null.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/param_store.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

constexpr int64_t kSizes[] = {1, 24, 61 * 23, 7 * 64, 4097};

std::unique_ptr<Unit> unit_of(int64_t numel, const ShardGroup& group) {
  auto unit = std::make_unique<Unit>("block", group);
  unit->add({replicated("norm.weight", {numel, 1}, 1, TensorRank{}, Partial::kNone)});
  return unit;
}

int64_t misalignment(const Tensor& tensor) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.raw()) % 16); }

}  // namespace

TEST_CASE("shards are multiples of 64 elements, cover their unit once and add as little padding as that needs") {
  for (const int shards : {1, 2, 3, 4, 5, 6, 7, 8, 1000}) {
    for (const int64_t numel : kSizes) {
      CAPTURE(shards, numel);
      const int64_t owned = Unit::shard_numel(numel, shards);
      CHECK(owned % 64 == 0);
      CHECK(owned * shards >= numel);
      CHECK((owned - 64) * shards < numel);
      int64_t end = 0;
      for (int rank = 0; rank < shards; ++rank) {
        NullCommunicator shard(rank, shards, "shard");
        const auto unit = unit_of(numel, {&shard});
        CHECK((unit->shard_numel() == owned && unit->owned_begin() == rank * owned));
        for (const Unit::Segment& segment : unit->owned_segments()) {
          CHECK(segment.flat_begin == end);
          CHECK(segment.flat_begin == rank * owned);
          end += segment.count;
        }
      }
      CHECK(end == numel);
    }
  }
}

TEST_CASE("owned weights and gradients start at multiples of 16 bytes for every number of shards and dtype") {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const int shards : {1, 2, 3, 5, 6, 7, 8}) {
      for (const int64_t numel : kSizes) {
        for (int rank = 0; rank < shards; ++rank) {
          CAPTURE(dtype, shards, numel, rank);
          Arena arena(Device::kReference, true);
          Context ctx{Device::kReference, &arena, 1};
          NullCommunicator shard(rank, shards, "shard"), replicate(0, 1, "replicate");
          const auto unit = unit_of(numel, {&shard, &replicate});
          const ZeroPolicy policy{.shard = shards, .parameters_resident = true, .gradients_resident = true};
          const ParamStore params(ctx, {unit.get()}, policy, {dtype, dtype, dtype, dtype});
          const GradStore grads(ctx, {unit.get()}, policy, dtype, std::make_unique<SumReducer>(dtype));
          CHECK(misalignment(params.master(0)) == 0);
          CHECK(misalignment(grads.shard(0)) == 0);
        }
      }
    }
  }
}
