// The matrix ranges that an optimizer receives: over all ranks of a layout they cover every element of every matrix of the model exactly once.
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/null.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// The two units of one tensor rank: a vocabulary of 13 rows, padded if the ranks do not divide them, two kv heads of three rows, columns, vectors.
std::vector<std::unique_ptr<Unit>> make_units(const TensorRank& at, const ShardGroup& group) {
  std::vector<std::unique_ptr<Unit>> units;
  const auto partial = at.size > 1 ? Partial::kTensor : Partial::kNone;
  units.push_back(std::make_unique<Unit>("embedding", group));
  units.back()->add({split_rows("embedding.weight", {13, 5}, 2, at, at.size)});
  units.push_back(std::make_unique<Unit>("block", group));
  units.back()->add({split_rows("query.weight", {24, 5}, 2, at, at.size), split_rows("key.weight", {6, 5}, 2, at, std::min(at.size, 2))});
  units.back()->add({split_columns("down.weight", {7, 24}, at)});
  units.back()->add({split_rows("up.bias", {24, 1}, 1, at, at.size)});
  units.back()->add({replicated("norm.weight", {5, 1}, 1, at, partial)});
  return units;
}

struct Tiling {
  std::array<int64_t, 2> shape;
  std::vector<int> times;  ///< by global element: number of ranges of primary copies that contain it
};

/// Adds the elements of a range one by one, and compares the first, and every rectangle of them, with boxes_of.
void add(const MatrixRange& range, const Unit::Segment& segment, std::map<std::string, Tiling>& tilings) {
  const ParamSpec& spec = *segment.spec;
  Tiling& tiling = tilings.try_emplace(std::string(range.name), Tiling{range.shape, {}}).first->second;
  CHECK((tiling.shape == range.shape && range.shape == spec.shape));
  tiling.times.resize(static_cast<size_t>(range.shape[0] * range.shape[1]));
  const std::vector<BoxRange> boxes = boxes_of(spec, segment.param_begin, segment.param_begin + segment.count);
  if (!boxes.empty()) CHECK(range.first() == boxes.front().box.start);
  int64_t count = 0;
  for (const BoxRange& box : boxes) count += box.box.numel();
  CHECK(range.count() == count);
  if (!spec.is_primary_copy) return;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = range.start[0] + i / range.extent[1], column = range.start[1] + i % range.extent[1];
    REQUIRE((row < range.shape[0] && column < range.shape[1]));
    ++tiling.times[static_cast<size_t>(row * range.shape[1] + column)];
  }
}

}  // namespace

TEST_CASE("the ranges of a layout's optimizers tile each matrix of the model once") {
  for (const int tensor : {1, 2, 4}) {
    for (const int shards : {1, 2, 3, 7}) {
      CAPTURE(tensor, shards);
      std::map<std::string, Tiling> tilings;
      for (int rank = 0; rank < tensor * shards; ++rank) {
        NullCommunicator shard(rank / tensor, shards, "shard"), replicate(0, 1, "replicate");
        const auto owned = make_units({rank % tensor, tensor}, {&shard, &replicate});
        std::vector<Unit*> units;
        for (const auto& unit : owned) units.push_back(unit.get());
        Arena arena(Device::kMeta);
        Context ctx{Device::kMeta, &arena, 1};
        const ZeroPolicy policy{.shard = shards, .parameters_resident = false, .gradients_resident = false};
        const Precision precision;
        const ParamStore params(ctx, units, policy, precision);
        const GradStore grads(ctx, units, policy, precision.gradient, std::make_unique<SumReducer>(precision.reduce));
        NullCommunicator tensor_ranks(rank % tensor, tensor, "tensor");
        const ShardedOptimizer optimizer(ctx, params, {}, precision, tensor_ranks);
        for (size_t u = 0; u < units.size(); ++u) {
          const std::vector<UpdateSlice> slices = optimizer.slices(params, grads, static_cast<int>(u), Optimizer::kAdamW);
          const std::vector<Unit::Segment> segments = units[u]->owned_segments();
          REQUIRE(slices.size() == segments.size());
          for (size_t i = 0; i < slices.size(); ++i) {
            CHECK(slices[i].matrix.name == segments[i].spec->name);
            CHECK((slices[i].matrix.count() <= slices[i].w.numel() && slices[i].w.numel() == segments[i].count));
            add(slices[i].matrix, segments[i], tilings);
          }
        }
      }
      CHECK(tilings.size() == 6);
      for (const auto& [name, tiling] : tilings) {
        CAPTURE(name);
        CHECK(tiling.times == std::vector<int>(tiling.times.size(), 1));
      }
    }
  }
}

TEST_CASE("a range names its first row and column in the global matrix") {
  const TensorRank second{1, 2};
  Unit unit("block");
  unit.add({split_columns("down.weight", {4, 6}, second)});     // columns 3 to 5: elements 0 to 11
  unit.add({split_rows("head.weight", {5, 2}, 2, second, 2)});  // rows 3 and 4, and one of padding: elements 12 to 17
  const std::vector<Unit::Segment> segments = unit.segments(4, 18);
  const MatrixRange down = segments[0].matrix_range(), head = segments[1].matrix_range();
  CHECK((down.name == "down.weight" && down.first() == std::array<int64_t, 2>{1, 4} && down.count() == 8));
  CHECK((down.start == std::array<int64_t, 2>{0, 3} && down.extent == std::array<int64_t, 2>{4, 3}));
  CHECK((head.first() == std::array<int64_t, 2>{3, 0} && head.begin == 0 && head.end == 4));
  CHECK(unit.segments(16, 18).front().matrix_range().count() == 0);  // padding alone
}
