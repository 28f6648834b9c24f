// Whole matrices for optimizers that need them: every matrix reaches one rank, complete, and its result every rank that has a piece of it.
#include "parallel/sharding/matrix_exchange.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

double cost(const std::array<int64_t, 2>& shape) { return static_cast<double>(shape[0] * shape[1]); }

struct Split2 {
  int shards, tensor;
};

struct Groups {
  std::unique_ptr<Communicator> tensor, shard;
};
/// The groups of a rank in shards x tensor ranks, tensor innermost. Collective.
Groups groups_of(Communicator& world, const Split2& split) {
  const int at_tensor = world.rank() % split.tensor, at_shard = world.rank() / split.tensor;
  std::vector<int> tensor_ranks(static_cast<size_t>(split.tensor)), shard_ranks(static_cast<size_t>(split.shards));
  std::iota(tensor_ranks.begin(), tensor_ranks.end(), at_shard * split.tensor);
  for (int s = 0; s < split.shards; ++s) shard_ranks[static_cast<size_t>(s)] = s * split.tensor + at_tensor;
  std::unique_ptr<Communicator> tensor = world.group(tensor_ranks, "tensor");
  return {std::move(tensor), world.group(shard_ranks, "shard")};
}

/// Two blocks: query and the keys of two heads stacked in one parameter, rows, columns, and what is no hidden matrix in between.
std::vector<std::unique_ptr<Unit>> units_of(const TensorRank& at, const ShardGroup& group) {
  std::vector<std::unique_ptr<Unit>> units;
  for (int block = 0; block < 2; ++block) {
    Unit& unit = *units.emplace_back(std::make_unique<Unit>("block", group));
    const auto name = [&](const char* of) { return concat("blocks.", block, ".", of); };
    const auto hidden = [](ParamSpec spec) {
      spec.is_hidden_matrix = true;
      return spec;
    };
    unit.add({replicated(name("norm"), {12, 1}, 1, at, Partial::kNone)});
    unit.add({hidden(split_rows(name("query"), {12, 12}, 2, at, at.size)), hidden(split_rows(name("key"), {4, 12}, 2, at, std::min(2, at.size)))});
    unit.add({hidden(split_columns(name("output"), {12, 24}, at))});
    unit.add({split_rows(name("bias"), {24, 1}, 1, at, at.size)});
    unit.add({hidden(replicated(name("shared"), {7, 5}, 2, at, Partial::kNone))});
  }
  return units;
}

/// A value of its own for each element of each matrix.
double value_of(const std::string& name, int64_t row, int64_t column) {
  return static_cast<double>(std::hash<std::string>()(name) % 1000) + static_cast<double>(row) + static_cast<double>(column) / 64;
}

}  // namespace

TEST_CASE("matrix exchange: matrices are dealt by cost, the dearest first, each to the least loaded rank") {
  CHECK(deal_by_cost(std::vector<double>{3, 1, 4, 1, 5}, 2) == std::vector<int>({1, 0, 1, 0, 0}));
  CHECK(deal_by_cost(std::vector<double>{2, 2, 2}, 4) == std::vector<int>({0, 1, 2}));
  CHECK(deal_by_cost({}, 3).empty());
}

TEST_CASE("matrix exchange: of fewer matrices than owners, and of uneven ones, the fullest owner decides") {
  const auto elements = [](const MatrixShape& shape) { return static_cast<double>(shape[0] * shape[1]); };
  const std::vector<MatrixShape> three(3, {4, 8}), uneven{{4, 8}, {2, 2}, {2, 2}};
  // One of four owners has none; the two tensor ranks of the first shard rank have half of two matrices each.
  const DealtMatrices fewer = deal(three, elements, 2, 2);
  CHECK(fewer.owner == std::vector<int>{0, 1, 2});
  CHECK(fewer.most_matrices == 32);
  CHECK(fewer.most_parts == 32);
  const DealtMatrices more = deal(three, elements, 2, 1);  // 64 of 96 elements on one of two
  CHECK(more.most_matrices == 64);
  CHECK(more.most_parts == 64);
  CHECK(deal(uneven, elements, 2, 1).most_matrices == 32);
}

TEST_CASE("matrix exchange: each matrix is whole on one rank, and its result comes back to every piece") {
  for (const Split2 split : {Split2{1, 1}, {2, 1}, {3, 1}, {7, 1}, {1, 2}, {1, 4}, {2, 2}, {3, 2}, {2, 4}}) {
    CAPTURE(split.shards, split.tensor);
    std::mutex mutex;
    std::map<std::string, int> owners;
    run_ranks(split.shards * split.tensor,
              [&](Communicator& world) {
                const auto [tensor, shard] = groups_of(world, split);
                const auto units = units_of({tensor->rank(), tensor->size()}, {.shard = shard.get()});
                std::vector<Unit*> all;
                for (const auto& unit : units) all.push_back(unit.get());
                const MatrixExchange exchange(all, *tensor, cost);
                Arena arena(Device::kReference, true);
                Context ctx{Device::kReference, &arena, 1};
                const Tensor pieces = Tensor::empty(ctx, {exchange.elements()}, DType::kF64, MemoryCategory::kWorkspace);
                const auto each_element = [&](const Tensor& of, const auto& body) {
                  for (const auto& [unit, segment, begin] : exchange.pieces())
                    for (int64_t i = 0; i < segment.count; ++i) {
                      const ParamSpec& spec = *segment.spec;
                      const int64_t local = segment.param_begin + i, columns = spec.box.extent[1];
                      body(spec, spec.box.start[0] + local / columns, spec.box.start[1] + local % columns, of.data<double>()[begin + i]);
                    }
                };
                each_element(pieces,
                             [](const ParamSpec& spec, int64_t row, int64_t column, double& value) { value = value_of(spec.name, row, column); });
                const Tensor back = exchange.transform(ctx, pieces, [&](const std::array<int64_t, 2>& shape, const Tensor& matrix) {
                  // Which matrix it is follows from its first element; all others must fit it.
                  std::string found;
                  for (const auto& unit : units)
                    for (const auto& param : unit->params())
                      for (const ParamSpec& spec : param->specs)
                        if (spec.shape == shape && value_of(spec.name, 0, 0) == matrix.data<double>()[0]) found = spec.name;
                  TRIREME_CHECK(!found.empty(), "a matrix that begins with ", matrix.data<double>()[0]);
                  for (int64_t row = 0; row < shape[0]; ++row)
                    for (int64_t column = 0; column < shape[1]; ++column) {
                      double& value = matrix.data<double>()[row * shape[1] + column];
                      TRIREME_CHECK(value == value_of(found, row, column), found, " [", row, ", ", column, "] is ", value);
                      value = -2 * value;
                    }
                  const std::lock_guard lock(mutex);
                  ++owners[found];
                });
                each_element(back, [](const ParamSpec& spec, int64_t row, int64_t column, double value) {
                  TRIREME_CHECK(value == -2 * value_of(spec.name, row, column), spec.name, " [", row, ", ", column, "] came back as ", value);
                });
              },
              {.poison = true});
    CHECK(owners.size() == 8);
    for (const auto& [name, times] : owners) {
      INFO(name);
      CHECK(times == 1);
    }
  }
}

TEST_CASE("matrix exchange: bytes on the wire are those of the header") {
  for (const Split2 split : {Split2{4, 1}, {1, 4}, {2, 2}}) {
    CAPTURE(split.shards, split.tensor);
    std::vector<CommunicationRecord> records;
    run_ranks(split.shards * split.tensor,
              [&](Communicator& world) {
                const auto [tensor, shard] = groups_of(world, split);
                std::vector<std::unique_ptr<Unit>> units;
                std::vector<Unit*> all;
                for (int i = 0; i < 16; ++i) {  // equal matrices, as many for each rank
                  Unit& unit = *units.emplace_back(std::make_unique<Unit>("block", ShardGroup{.shard = shard.get()}));
                  ParamSpec spec = split_columns(concat("m", i), {16, 64}, {tensor->rank(), tensor->size()});
                  spec.is_hidden_matrix = true;
                  unit.add({spec});
                  all.push_back(&unit);
                }
                const MatrixExchange exchange(all, *tensor, cost);
                Arena arena(Device::kReference, true);
                Context ctx{Device::kReference, &arena, 1};
                const Tensor pieces = Tensor::zeros(ctx, {exchange.elements()}, DType::kF32, MemoryCategory::kWorkspace);
                exchange.transform(ctx, pieces, [](const std::array<int64_t, 2>&, const Tensor&) {});
              },
              {.records = &records});
    const double part = 16.0 * 16 * 64 / split.tensor / split.shards * 4;  // bytes of a rank's pieces
    for (CommunicationRecord& record : records) {
      CHECK(record.entry("shard", "all_to_all_v").wire_bytes == Approx(2 * part * (split.shards - 1) / split.shards));
      CHECK(record.entry("tensor", "all_to_all_v").wire_bytes == Approx(2 * part * (split.tensor - 1) / split.tensor));
    }
  }
}
