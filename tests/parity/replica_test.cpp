// Copies of a parameter on several ranks are bit-identical, and the replica check detects a single flipped bit.
#include "trainer/resilience/replica_check.h"

#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "parallel/sharding/unit.h"
#include "tests/parity/layouts.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/list_ranks.h"
#include "trainer/machine/collectively.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

Device device_of(const OneOf<Arithmetic>& precision) { return precision == Arithmetic::kFp64 ? Device::kReference : Device::kCpu; }

int world_of(const Config& config) { return mesh_shape(config.parallel).world(); }

/// Runs body(trainer) on every rank after two steps of training.
template <class Body>
void after_two_steps(const Config& config, const Body& body) {
  RankOptions options;
  options.poison = true;
  run_ranks(
      world_of(config),
      [&](Communicator& world) {
        Arena arena(device_of(config.training.precision), true);
        Context ctx{arena.device(), &arena, 1};
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        for (int step = 0; step < 2; ++step) trainer.step(kData, step, 3e-3);
        body(trainer);
      },
      options);
}

/// The result of the check, which must be the same on every rank.
std::string checked(Trainer& trainer) {
  const std::string mine = replica_differences(trainer);
  for (const std::string& other : all_gather_strings(trainer.mesh().world, mine))
    TRIREME_CHECK(other == mine, "ranks have different results: '", mine, "' and '", other, "'");
  return mine;
}

void expect_agreement(Trainer& trainer) {
  const std::string found = checked(trainer);
  TRIREME_CHECK(found.empty(), "nothing differs, but the check reports: ", found);
}

void flip_a_bit(const Tensor& tensor, int64_t at) {
  static_cast<unsigned char*>(tensor.raw())[at % (tensor.numel() * size_of(tensor.dtype()))] ^= static_cast<unsigned char>(1 << (at % 8));
}

/// Flips one bit of `tensor` on this rank, if defined, runs the check, and flips it back.
std::string with_a_bit_flipped(Trainer& trainer, const Tensor& tensor, int64_t at) {
  if (tensor.defined()) flip_a_bit(tensor, at);
  const std::string found = checked(trainer);
  if (tensor.defined()) flip_a_bit(tensor, at);
  return found;
}

/// World ranks by the checkpoint names of the boxes they own.
std::map<std::string, std::vector<int>> owners(Trainer& trainer) {
  std::string mine;
  for (const OwnedBox& owned : trainer.owned_boxes()) mine += entry_name(owned.spec->name, owned.box) + "\n";
  std::map<std::string, std::vector<int>> ranks;
  const std::vector<std::string> all = all_gather_strings(trainer.mesh().world, mine);
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const std::string& names = all[static_cast<size_t>(rank)];
    for (size_t begin = 0; begin < names.size(); begin = names.find('\n', begin) + 1)
      ranks[names.substr(begin, names.find('\n', begin) - begin)].push_back(rank);
  }
  return ranks;
}

std::string in_words(const std::vector<int>& ranks) { return list_ranks(ranks) + (ranks.size() == 1 ? " holds" : " hold"); }

void expect_difference(const std::string& found, const std::string& name, std::vector<int> ranks, int culprit) {
  std::erase(ranks, culprit);
  TRIREME_CHECK(found.find(name + ": ") != std::string::npos, name, " differs on rank ", culprit, ", but the check reports: '", found, "'");
  const bool first = ranks.size() > 1 || ranks.front() < culprit;
  for (const std::string& part : {in_words(ranks) + (first ? " copy 1" : " copy 2"), in_words({culprit}) + (first ? " copy 2" : " copy 1")})
    TRIREME_CHECK(found.find(part) != std::string::npos, "not reported: ", part, " of ", name, " in: ", found);
}

std::vector<std::string> kinds_of(const Trainer& trainer) {
  std::vector<std::string> kinds = state_names(trainer.config().training);
  kinds.insert(kinds.begin(), "weight");
  return kinds;
}

Tensor tensor_of(const OwnedBox& owned, const std::string& kind) {
  for (const auto& [name, tensor] : owned.kept())
    if (name == kind) return tensor;
  throw InternalError("no " + kind);
}

/// Flips one bit in each kind of one rank's state; `turn` selects where. Returns false if no two ranks share any element.
bool flip_somewhere(Trainer& trainer, size_t turn) {
  std::vector<std::pair<std::string, std::vector<int>>> shared;
  for (const auto& [name, ranks] : owners(trainer))
    if (ranks.size() > 1) shared.push_back({name, ranks});
  if (shared.empty()) return false;
  std::set<std::string> kept;  // not every parameter has all kinds of state
  for (const OwnedBox& owned : trainer.owned_boxes())
    for (const auto& [kind, unused] : owned.kept()) kept.insert(concat(kind, "/", entry_name(owned.spec->name, owned.box)));
  kept = union_of_names(trainer.mesh().world, kept);
  for (const std::string& kind : kinds_of(trainer)) {
    auto of_kind = shared;
    std::erase_if(of_kind, [&](const auto& entry) { return !kept.contains(concat(kind, "/", entry.first)); });
    if (of_kind.empty()) continue;
    const auto& [name, ranks] = of_kind[turn++ % of_kind.size()];
    const int culprit = ranks[turn % ranks.size()];
    Tensor target;
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (trainer.mesh().world.rank() == culprit && entry_name(owned.spec->name, owned.box) == name) target = tensor_of(owned, kind);
    const std::string found = with_a_bit_flipped(trainer, target, static_cast<int64_t>(turn * 7919));
    expect_difference(found, kind + "/" + name, ranks, culprit);
  }
  return true;
}

/// The same in a resident full copy, in the part that another rank owns. Returns false if there is none.
bool flip_full_copy(Trainer& trainer, size_t turn) {
  Mesh& mesh = trainer.mesh();
  const ParamStore& params = trainer.stages()[turn % trainer.stages().size()]->params();
  const Unit& unit = *params.units()[turn % params.units().size()];
  if (mesh.shape.shard == 1 || !unit.params().front()->value.defined()) return false;
  const int culprit = static_cast<int>(turn % static_cast<size_t>(mesh.shape.world()));
  Tensor target;
  std::string name;
  const int64_t owned = unit.shard_numel(), next = (mesh.shard->rank() + 1) % mesh.shape.shard;
  const std::vector<Unit::Segment> others = unit.segments(next * owned, (next + 1) * owned);
  if (mesh.world.rank() == culprit && !others.empty()) {
    const Unit::Segment& other = others.front();
    for (const auto& param : unit.params()) {
      int64_t begin = 0;
      for (const ParamSpec& spec : param->specs) {
        if (&spec == other.spec) target = param->value.flat(begin + other.param_begin, other.count);
        begin += spec.numel();
      }
    }
    name = other.spec->name;
  }
  name = all_gather_strings(mesh.world, name)[static_cast<size_t>(culprit)];
  if (name.empty()) return false;  // the next shard of a small unit is padding
  const std::string found = with_a_bit_flipped(trainer, target, static_cast<int64_t>(turn * 7919));
  TRIREME_CHECK(found.find("full copy of weight/" + name + "@") != std::string::npos, "the full copy of ", name, " differs on rank ", culprit,
                ", but the check reports: '", found, "'");
  TRIREME_CHECK(found.find(in_words({culprit})) != std::string::npos, "rank ", culprit, " is not named: ", found);
  return true;
}

void check_layouts(const std::vector<ParityCase>& cases, const std::string& precision) {
  std::mutex mutex;
  std::set<size_t> twice;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [model, layout] = cases[i];
    INFO(name_of(model) << " " << layout.str() << " " << precision);
    after_two_steps(parity_config(model, layout, precision), [&](Trainer& trainer) {
      expect_agreement(trainer);
      const bool owned = flip_somewhere(trainer, i * 31);
      flip_full_copy(trainer, i * 31);
      expect_agreement(trainer);
      trainer.step(kData, 2, 3e-3);
      expect_agreement(trainer);
      const std::lock_guard lock(mutex);
      if (owned) twice.insert(i);
    });
  }
  CHECK(twice.size() * 2 > cases.size());  // otherwise the list proves nothing
}

std::vector<ParityCase> every(size_t n) {
  const std::vector<ParityCase> all = covering_parity_cases(2);
  std::vector<ParityCase> some;
  for (size_t i = 0; i < all.size(); i += n) {
    some.push_back(all[i]);
    some.back().layout.islands = 1;  // within a round islands differ; local_updates_test.cpp has their check after a round
  }
  return some;
}

ParityLayout layout_of(const auto& test_case) {
  return {{.tensor = test_case.tensor,
           .pipeline = test_case.pipeline,
           .data = test_case.data,
           .zero = test_case.zero,
           .replicate = test_case.replicate,
           .schedule = test_case.schedule,
           .virtual_stages = test_case.virtual_stages}};
}

}  // namespace

TEST_CASE("replicas agree after training in fp32, and one bit on one rank is found and named") { check_layouts(every(4), "fp32"); }

TEST_CASE("replicas agree after training in bf16, and one bit on one rank is found and named") { check_layouts(every(6), "bf16"); }
TEST_CASE("replicas agree under more pairs of options, and one bit on one rank is found and named", "[slow]") {
  check_layouts(every(2), "fp32");
  check_layouts(every(3), "bf16");
}

TEST_CASE("replicas agree in every layout of up to eight ranks, and one bit on one rank is found and named", "[slow]") {
  for (const char* precision : {"fp32", "bf16"}) check_layouts(all_parity_cases(), precision);
}

TEST_CASE("each reason for which ranks have copies is checked") {
  struct Case {
    const char* why;
    ParityModel model;
    int tensor, pipeline, data, zero, replicate;
    std::string parameter;
    int culprit;
    std::vector<int> ranks;
    ScheduleKind schedule = ScheduleKind::k1F1B;
    int virtual_stages = 1;
  };
  // World ranks: pipeline outermost, then replicate, shard, tensor.
  const Case cases[] = {
      {"data ranks under ZeRO-0", ParityModel::kLlama, 1, 1, 3, 0, 1, "blocks.2.mlp.down.weight@0,0", 2, {0, 1, 2}},
      {"hybrid sharding", ParityModel::kLlama, 1, 1, 4, 3, 2, "final_norm.weight@0,0", 2, {0, 2}},
      {"norms over tensor ranks", ParityModel::kGpt2, 3, 1, 1, 0, 1, "blocks.1.mlp_norm.bias@0,0", 1, {0, 1, 2}},
      {"norms over tensor ranks and replicas", ParityModel::kGpt2, 2, 1, 2, 0, 1, "blocks.1.mlp_norm.bias@0,0", 3, {0, 1, 2, 3}},
      {"positions over tensor ranks", ParityModel::kGpt2Dropout, 2, 2, 1, 0, 1, "positions.weight@0,0", 0, {0, 1}},
      {"shared kv heads", ParityModel::kLlamaGrouped, 4, 1, 1, 0, 1, "blocks.4.attention.key.weight@4,0", 2, {2, 3}},
      {"shared kv heads of replicas", ParityModel::kLlamaGrouped, 4, 1, 2, 0, 1, "blocks.0.attention.value.weight@0,0", 5, {0, 1, 4, 5}},
      {"the tied embedding", ParityModel::kLlamaGrouped, 1, 3, 1, 0, 1, "embedding.weight@0,0", 2, {0, 2}},
      {"the tied embedding, split and sharded", ParityModel::kGpt2, 2, 2, 2, 1, 1, "embedding.weight@31,0", 1, {1, 5}},
      {"the tied embedding of first and last of four stages",
       ParityModel::kLlamaGrouped,
       1,
       2,
       1,
       0,
       1,
       "embedding.weight@0,0",
       1,
       {0, 1},
       ScheduleKind::kInterleaved1F1B,
       2},
      {"data ranks, in the second stage of a rank",
       ParityModel::kGpt2,
       1,
       2,
       2,
       0,
       1,
       "blocks.4.mlp.up.weight@0,0",
       1,
       {0, 1},
       ScheduleKind::kZbV,
       2},
      {"the one embedding of a V, over data ranks", ParityModel::kGpt2, 1, 2, 2, 0, 1, "embedding.weight@0,0", 0, {0, 1}, ScheduleKind::kZbV, 2},
  };
  for (const Case& c : cases) {
    INFO(c.why);
    const ParityLayout layout = layout_of(c);
    after_two_steps(parity_config(c.model, layout, "fp32"), [&](Trainer& trainer) {
      expect_agreement(trainer);
      TRIREME_CHECK(owners(trainer)[c.parameter] == c.ranks, c.why, ": ", c.parameter, " is not owned by the ranks this test expects");
      for (const std::string& kind : kinds_of(trainer)) {
        Tensor target;
        for (const OwnedBox& owned : trainer.owned_boxes())
          if (trainer.mesh().world.rank() == c.culprit && entry_name(owned.spec->name, owned.box) == c.parameter) target = tensor_of(owned, kind);
        expect_difference(with_a_bit_flipped(trainer, target, 5), kind + "/" + c.parameter, c.ranks, c.culprit);
      }
    });
  }
}

TEST_CASE("a V schedule has one embedding for its first and last stage: no other rank has a copy") {
  const ParityLayout layout = ParityLayout{{.pipeline = 3, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}.with_layers(13);
  after_two_steps(parity_config(ParityModel::kLlamaGrouped, layout, "fp32"), [&](Trainer& trainer) {
    expect_agreement(trainer);
    for (const auto& [name, ranks] : owners(trainer)) TRIREME_CHECK(ranks.size() == 1, name, " is owned by ", ranks.size(), " ranks");
    TRIREME_CHECK(owners(trainer)["embedding.weight@0,0"] == std::vector<int>{0}, "rank 0 does not own the embedding");
    for (const Action& action : trainer.program().training_list())
      TRIREME_CHECK(action.type != ActionType::kReduceTied, "a tied reduction of a single copy");
  });
}

TEST_CASE("resident full copies are checked on every rank") {
  struct Case {
    ParityModel model;
    int tensor, pipeline, data, zero, replicate;
    ScheduleKind schedule = ScheduleKind::k1F1B;
    int virtual_stages = 1;
  };
  for (const Case& c : {Case{ParityModel::kGpt2, 1, 1, 2, 1, 1},
                        {ParityModel::kLlama, 1, 1, 3, 2, 1},
                        {ParityModel::kLlamaGrouped, 2, 1, 4, 1, 2},
                        {ParityModel::kGpt2, 2, 2, 2, 2, 1},
                        {ParityModel::kGpt2, 1, 2, 2, 1, 1, ScheduleKind::kZbV, 2}}) {
    const ParityLayout layout = layout_of(c);
    for (const char* precision : {"fp32", "bf16"}) {
      INFO(name_of(c.model) << " " << layout.str() << " " << precision);
      after_two_steps(parity_config(c.model, layout, precision), [&](Trainer& trainer) {
        expect_agreement(trainer);
        for (size_t turn = 0; turn < 10; ++turn) TRIREME_CHECK(flip_full_copy(trainer, turn), "this layout has no full copy of what other ranks own");
        expect_agreement(trainer);
      });
    }
  }
}

TEST_CASE("the check compares every element that two ranks own") {
  // It compares equal boxes: if two ranks' boxes of a parameter overlap, they must be identical.
  for (const auto& [model, layout] : every(3)) {
    INFO(name_of(model) << " " << layout.str());
    after_two_steps(parity_config(model, layout, "fp32"), [&](Trainer& trainer) {
      std::string mine;
      for (const OwnedBox& owned : trainer.owned_boxes())
        mine += concat(owned.spec->name, " ", owned.box.start[0], " ", owned.box.start[1], " ", owned.box.extent[0], " ", owned.box.extent[1], "\n");
      std::map<std::string, std::set<std::array<int64_t, 4>>> boxes;
      for (const std::string& text : all_gather_strings(trainer.mesh().world, mine)) {
        std::istringstream lines(text);
        std::string name;
        for (std::array<int64_t, 4> box; lines >> name >> box[0] >> box[1] >> box[2] >> box[3];) boxes[name].insert(box);
      }
      for (const auto& [name, all] : boxes)
        for (const auto& a : all)
          for (const auto& b : all)
            TRIREME_CHECK(a == b || a[0] + a[2] <= b[0] || b[0] + b[2] <= a[0] || a[1] + a[3] <= b[1] || b[1] + b[3] <= a[1], name,
                          ": two ranks own boxes that overlap but are not identical");
    });
  }
}

TEST_CASE("many differences are reported in few lines") {
  ParityLayout layout;
  layout.data = 4;
  after_two_steps(parity_config(ParityModel::kGpt2, layout, "fp32"), [&](Trainer& trainer) {
    if (trainer.mesh().world.rank() == 2)
      for (const OwnedBox& owned : trainer.owned_boxes()) flip_a_bit(owned.state.front().shard, 0);
    const std::string found = checked(trainer);
    TRIREME_CHECK(std::count(found.begin(), found.end(), '\n') <= 8, found);
    TRIREME_CHECK(found.find("ranks 0, 1, 3 hold") != std::string::npos && found.find("rank 2 holds") != std::string::npos, found);
    TRIREME_CHECK(found.find("and more") != std::string::npos, found);
  });
}

/// With every `stride`-th of the pairs of options.
static void check_changes_nothing(size_t stride) {
  for (const auto& [model, layout] : every(stride)) {
    INFO(name_of(model) << " " << layout.str());
    after_two_steps(parity_config(model, layout, "bf16"), [&](Trainer& trainer) {
      Arena arena(Device::kCpu, true);
      Context ctx{Device::kCpu, &arena, 1};
      Trainer other(ctx, trainer.mesh().world, parity_config(model, layout, "bf16"), true);
      other.initialise();
      for (int step = 0; step < 4; ++step) {
        const double loss = other.step(kData, step, 3e-3).loss;
        if (step >= 2) TRIREME_CHECK(trainer.step(kData, step, 3e-3).loss == loss, "step ", step, " has a different loss");
        expect_agreement(trainer);
      }
    });
  }
}

TEST_CASE("a replica check does not change training") { check_changes_nothing(12); }

TEST_CASE("a replica check does not change training under a quarter of the pairs of options", "[slow]") { check_changes_nothing(4); }

}  // namespace trireme::test
