// Bytes on the wire, by axis, of one training step: recorded against the closed forms of the docstrings.
#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

struct Wire {
  double tensor = 0, shard = 0, replicate = 0, pipeline = 0, embedding = 0;
};

/// What one rank sends in a step. t, S, R, m: tensor, shard, replicate degrees and micro-batches; `size` bytes an element.
Wire closed_form(const Config& config, const MeshCoordinate& at, const std::vector<int64_t>& unit_numel, const std::vector<bool>& unit_tied,
                 int64_t partial_numel, double size) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const double t = mesh.tensor, S = mesh.shard, R = mesh.replicate;
  const bool sp = config.parallel.sequence_parallel;
  const double M = static_cast<double>(config.training.micro_batch_size * config.training.sequence_length);
  const double D = static_cast<double>(config.model.hidden_size);
  const double m = static_cast<double>(config.training.global_batch_size / (config.training.micro_batch_size * mesh.data()));
  const double layers = static_cast<double>((*config.parallel.layers_per_stage)[static_cast<size_t>(at.pipeline)]);
  const bool first = at.pipeline == 0, last = at.pipeline == mesh.pipeline - 1;
  const double gather = (t - 1) / t * M * D * size;  // all-gather or reduce-scatter of [M,D]; an all-reduce is two
  Wire wire;
  // A layer crosses the region four times forward and backward: all-reduces on one side of each pair, or gather and scatter on both, and under
  // sequence parallelism the two column-parallel weight gradients gather their input once more.
  wire.tensor = layers * m * (sp ? 10 : 8) * gather;
  if (first) wire.tensor += m * 2 * gather;                 // embedding: all-reduce forward, or scatter and gather
  if (last) wire.tensor += m * (sp ? 3 : 2) * gather;       // head: all-reduce backward, or gather, scatter, gather
  if (last) wire.tensor += m * 2 * (t - 1) / t * 3 * M * size;  // cross-entropy: max of M, sums of 2M
  if (t > 1) wire.tensor += 2 * (t - 1) / t * static_cast<double>(partial_numel) * size;
  const bool use = config.parallel.zero_stage == 3 && config.parallel.reshard == "after_use";
  const bool each = config.parallel.zero_stage >= 2 && config.parallel.gradient_accumulation != "full";
  const StageUnits units = stage_units(stage_range(*config.parallel.layers_per_stage, at.pipeline), config.model);
  const std::vector<int>& last_part = units.units_of_part.back();
  for (size_t u = 0; u < unit_numel.size(); ++u) {
    // GPipe: every unit is gathered for each F and each B, but what the last part reads stays from the last F to the first B.
    const double uses = 2 * m - (std::find(last_part.begin(), last_part.end(), static_cast<int>(u)) != last_part.end() ? 1 : 0);
    const double shard = std::ceil(static_cast<double>(unit_numel[u]) / S);
    wire.shard += (S - 1) * shard * size * ((use ? uses : 1) + (each ? m : 1));
    wire.replicate += 2 * (R - 1) / R * shard * size;
    if (unit_tied[u]) wire.embedding += shard * size;  // two owners: 2(n-1)/n = 1
  }
  const double boundary = M / (sp ? t : 1) * D * size;
  wire.pipeline = m * boundary * ((first ? 0 : 1) + (last ? 0 : 1));
  return wire;
}

}  // namespace

TEST_CASE("bytes on the wire of a step are those of the docstrings, on every axis") {
  std::vector<Layout> layouts;
  for (const bool sp : {false, true}) {
    for (const int zero : {0, 1, 2, 3}) {
      Layout layout;
      layout.tensor = 2;
      layout.pipeline = 2;
      layout.data = 2;
      layout.zero = zero;
      layout.sequence_parallel = sp;
      layouts.push_back(layout);
      layout.tensor = 1;
      layout.data = 4;
      layout.replicate = zero == 0 ? 1 : 2;
      layout.accumulation = zero >= 2 ? "full" : "auto";
      layouts.push_back(layout);
      if (zero != 3) continue;
      layout.accumulation = "sharded";
      layout.reshard = "after_step";
      layouts.push_back(layout);
    }
  }
  for (const Layout& layout : layouts) {
    Config config = parity_config(ParityModel::kGpt2, layout, "fp32");
    config.parallel.schedule = "gpipe";
    std::vector<CommunicationRecord> records;
    std::vector<Wire> expected(static_cast<size_t>(layout.world()));
    std::vector<CommunicationRecord> before(static_cast<size_t>(layout.world()));
    RankOptions options;
    options.records = &records;
    run_ranks(
        layout.world(),
        [&](Communicator& world) {
          const auto rank = static_cast<size_t>(world.rank());
          Arena arena(Device::kReference);
          Context ctx{Device::kReference, &arena, 1};
          Trainer trainer(ctx, world, config, true);
          trainer.initialise();
          const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
          trainer.step(data, 0, 1e-3);
          before[rank] = records[rank];
          trainer.step(data, 1, 1e-3);
          std::vector<int64_t> numel;
          std::vector<bool> tied;
          int64_t partial = 0;
          const auto& units = trainer.stage().params().units();
          for (const Unit* unit : units) {
            numel.push_back(unit->numel());
            tied.push_back(unit->name() == "embedding");
            for (const Unit::Segment& segment : unit->owned_segments(trainer.mesh().at.shard, trainer.mesh().shape.shard))
              if (segment.spec->partial_over == Partial::kTensor) partial += segment.count;
          }
          expected[rank] = closed_form(config, trainer.mesh().at, numel, tied, partial, 4);
        },
        options);
    for (size_t rank = 0; rank < records.size(); ++rank) {
      INFO(layout.str() << " rank " << rank);
      const auto sent = [&](const char* group) { return records[rank].wire_bytes(group) - before[rank].wire_bytes(group); };
      CHECK(sent("tensor") == Approx(expected[rank].tensor));
      CHECK(sent("shard") == Approx(expected[rank].shard));
      CHECK(sent("replicate") == Approx(expected[rank].replicate));
      CHECK(sent("pipeline") == Approx(expected[rank].pipeline));
      CHECK(sent("embedding") == Approx(expected[rank].embedding));
    }
  }
}

}  // namespace trireme::test
