// Bytes on the wire of a training step, by axis: recorded values against the closed forms in the headers.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/private_random.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

struct Wire {
  double tensor = 0, kv = 0, shard = 0, replicate = 0, data = 0, pipeline = 0, embedding = 0, world = 0;
};

/// What the formulas read of a rank.
struct RankFacts {
  MeshCoordinate at;
  std::vector<int64_t> unit_numel;
  std::vector<bool> unit_tied, unit_trains, unit_kept;
  double inputs = 0;                         ///< column-parallel layers of which a weight is trained read them
  bool embeds = false;                       ///< the embedding is here, and is trained
  std::map<Partial, int64_t> partial_numel;  ///< of the owned shards
  double microbatches = 0;
};

RankFacts facts_of(Trainer& trainer) {
  RankFacts facts{.at = trainer.mesh().at, .unit_numel = {}, .unit_tied = {}, .unit_trains = {}, .unit_kept = {}, .partial_numel = {}};
  std::set<std::string> inputs;
  for (const Unit* unit : trainer.stage().params().units()) {
    facts.unit_numel.push_back(unit->numel());
    facts.unit_trains.push_back(unit->trainable());
    facts.unit_kept.push_back(unit->name().ends_with("adapter"));
    if (!unit->trainable()) {
      facts.unit_tied.push_back(false);
      continue;
    }
    facts.unit_tied.push_back(unit->name() == "embedding" && trainer.config().model.tied_embeddings && trainer.mesh().shape.pipeline > 1);
    for (const auto& param : unit->params())
      for (const ParamSpec& spec : param->specs) {
        facts.embeds = facts.embeds || spec.name == "embedding.weight";
        for (const char* layer : {".attention.query.", ".attention.key.", ".attention.value.", ".mlp.gate.", ".mlp.up."})
          if (const size_t at = spec.name.find(layer); at != std::string::npos && spec.name.ends_with("weight"))
            inputs.insert(spec.name.substr(0, spec.name.find('.', at + 1)));
      }
    for (const Unit::Segment& segment : unit->owned_segments()) facts.partial_numel[segment.spec->partial_over] += segment.count;
  }
  facts.inputs = static_cast<double>(inputs.size());
  facts.microbatches = trainer.batches().split()[static_cast<size_t>(trainer.batches().data_rank())];
  return facts;
}

/// Bytes that one rank sends in a step. t, S, R, m: tensor, shard, replicate degrees and micro-batches.
Wire closed_form(const Config& config, const RankFacts& facts) {
  const auto& [at, unit_numel, unit_tied, unit_trains, unit_kept, inputs, embeds, partial_numel, m] = facts;
  const Precision precision = precision_of(config.training);
  const auto size = static_cast<double>(size_of(precision.compute));  // bytes of an activation and of a gathered parameter
  const auto wide = static_cast<double>(size_of(precision.gradient)), reduced = static_cast<double>(size_of(precision.reduce));
  const MeshShape mesh = mesh_shape(config.parallel);
  const double t = mesh.tensor, S = mesh.shard, R = mesh.replicate;
  const bool sp = config.parallel.sequence_parallel;
  const double M = static_cast<double>(config.training.micro_batch_size * config.training.sequence_length);
  const double D = static_cast<double>(config.model.hidden_size);
  const double layers = static_cast<double>((*config.parallel.layers_per_stage)[static_cast<size_t>(at.pipeline)]);
  const bool first = at.pipeline == 0, last = at.pipeline == mesh.pipeline - 1;
  const double gather = (t - 1) / t * M * D * size;  // all-gather or reduce-scatter of [M,D]; an all-reduce is two
  Wire wire;
  // A layer crosses the region four times in forward and backward: an all-reduce on one side of each pair, or gather and scatter on both. Under
  // sequence parallelism the two column-parallel weight gradients also gather their input.
  wire.tensor = (8 * layers + (sp ? inputs : 0)) * m * gather;
  // Full recomputation repeats the forward except its last exit.
  if (config.training.recompute == RecomputeMode::kFull) wire.tensor += layers * m * (sp ? 3 : 2) * gather;
  // Embedding: all-reduce forward, or scatter and, if it is trained, gather.
  if (first) wire.tensor += m * (sp && !embeds ? 1 : 2) * gather;
  if (last) wire.tensor += m * 2 * gather;                      // head: all-reduce backward, or gather and scatter
  if (last) wire.tensor += m * 2 * (t - 1) / t * 3 * M * wide;  // cross-entropy: max of M, sums of 2M
  // Partial gradients, packed, once per step.
  const auto partial = [&](Partial over) { return partial_numel.contains(over) ? static_cast<double>(partial_numel.at(over)) * wide : 0; };
  const double copies = std::max(1.0, t / static_cast<double>(*config.model.kv_heads));  // ranks that share a kv head
  wire.tensor += 2 * (t - 1) / t * partial(Partial::kTensor);
  wire.kv = 2 * (copies - 1) / copies * partial(Partial::kKv);
  wire.data = 2 * (mesh.data() - 1.0) / mesh.data() * 8;  // valid tokens
  const double shared = 24 + 4 * 32;                      // squared norm, loss, outliers; the comparison of the copies of these and of the acceptance
  wire.world = 2 * (mesh.world() - 1.0) / mesh.world() * shared;
  const bool use = config.parallel.zero_stage == 3 && config.parallel.reshard == Reshard::kAfterUse;
  const bool resident = config.parallel.zero_stage < 3;
  const bool each = config.parallel.zero_stage >= 2 && config.parallel.gradient_accumulation != GradientAccumulation::kFull;
  const std::vector<UnitRef> last_part =
      stage_units(config, stage_ranks(training_schedule(config)))[static_cast<size_t>(at.pipeline)].units_of_part.back();
  for (size_t u = 0; u < unit_numel.size(); ++u) {
    // GPipe: every unit is gathered for each F and each B, except that the last part's units stay from the last F to the first B.
    const double uses = 2 * m - (std::find(last_part.begin(), last_part.end(), static_cast<int>(u)) != last_part.end() ? 1 : 0);
    const double shard = 64 * std::ceil(static_cast<double>(unit_numel[u]) / (64 * S));
    // Where full parameters live for the run, only those that are trained are gathered again in every step. Adapters are gathered once a step.
    const double gathers = use && !unit_kept[u] ? uses : resident && !unit_trains[u] ? 0 : 1, reductions = !unit_trains[u] ? 0 : each ? m : 1;
    wire.shard += (S - 1) * shard * (size * gathers + reduced * reductions);
    if (unit_trains[u]) wire.replicate += 2 * (R - 1) / R * shard * reduced;
    if (unit_tied[u]) wire.embedding += shard * wide;  // two owners: 2(n-1)/n = 1
  }
  const double boundary = M / (sp ? t : 1) * D * size;
  wire.pipeline = m * boundary * ((first ? 0 : 1) + (last ? 0 : 1));
  return wire;
}

}  // namespace

TEST_CASE("bytes on the wire of a step match the headers' formulas on every axis") {
  std::vector<std::pair<ParityModel, ParityLayout>> layouts;
  ParityLayout shared_heads;  // four tensor ranks over two kv heads
  shared_heads.tensor = 4;
  shared_heads.pipeline = 2;
  shared_heads.sequence_parallel = true;
  layouts.push_back({ParityModel::kLlamaGrouped, shared_heads});
  for (const bool sp : {false, true}) {
    for (const int zero : {0, 1, 2, 3}) {
      ParityLayout layout;
      layout.tensor = 2;
      layout.pipeline = 2;
      layout.data = 2;
      layout.zero = zero;
      layout.sequence_parallel = sp;
      layout.recompute = zero == 0 ? RecomputeMode::kFull : zero == 1 ? RecomputeMode::kSelective : RecomputeMode::kNone;
      layouts.push_back({ParityModel::kGpt2, layout});
      if (sp) {
        layout.frozen = true;
        layouts.push_back({ParityModel::kLlamaGrouped, layout});
        layout.frozen = false;
        layout.adapter = true;
        layouts.push_back({ParityModel::kLlamaGrouped, layout});
        layout.adapter = false;
      }
      layout.recompute = RecomputeMode::kNone;
      layout.tensor = 1;
      layout.data = 4;
      layout.replicate = zero == 0 ? 1 : 2;
      layout.gradient_accumulation = zero >= 2 ? GradientAccumulation::kFull : GradientAccumulation::kAuto;
      layouts.push_back({ParityModel::kGpt2, layout});
      if (zero != 3) continue;
      layout.gradient_accumulation = GradientAccumulation::kSharded;
      layout.reshard = Reshard::kAfterStep;
      layouts.push_back({ParityModel::kGpt2, layout});
    }
  }
  const std::pair<const char*, const char*> dtypes[] = {{"fp32", "fp32"}, {"bf16", "fp32"}, {"bf16", "bf16"}};
  for (size_t i = 0; i < 3 * layouts.size(); ++i) {
    const auto& [model, layout] = layouts[i / 3];
    const auto& [precision, reduce_dtype] = dtypes[i % 3];
    Config config = parity_config(model, layout, precision);
    config.training.reduce_dtype = OneOf<ReduceDtype>(reduce_dtype);
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
          Context ctx{Device::kReference, &arena, 1, nullptr};
          Trainer trainer(ctx, world, config, true);
          trainer.initialise();
          const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
          trainer.step(data, 0, 1e-3);
          before[rank] = records[rank];
          trainer.step(data, 1, 1e-3);
          expected[rank] = closed_form(config, facts_of(trainer));
        },
        options);
    for (size_t rank = 0; rank < records.size(); ++rank) {
      INFO(layout.str() << " " << precision << ", gradients in " << reduce_dtype << ", rank " << rank);
      const auto sent = [&](const char* group) { return records[rank].wire_bytes(group) - before[rank].wire_bytes(group); };
      CHECK(sent("tensor") == Approx(expected[rank].tensor).epsilon(1e-12));
      CHECK(sent("kv") == Approx(expected[rank].kv).epsilon(1e-12));
      CHECK(sent("data") == Approx(expected[rank].data).epsilon(1e-12));
      CHECK(sent("world") == Approx(expected[rank].world).epsilon(1e-12));
      CHECK(sent("shard") == Approx(expected[rank].shard).epsilon(1e-12));
      CHECK(sent("replicate") == Approx(expected[rank].replicate).epsilon(1e-12));
      CHECK(sent("pipeline") == Approx(expected[rank].pipeline).epsilon(1e-12));
      CHECK(sent("embedding") == Approx(expected[rank].embedding).epsilon(1e-12));
    }
  }
}

namespace {

/// What a private step sends beside that: the squares of the samples' gradients, over tensor and pipeline ranks; gradients that are partial over tensor
/// ranks, of each sample, because they are summed before they are squared; under sequence parallelism the inputs of column-parallel layers once
/// more; and the rows of a tied head from the last stage to the first.
Wire for_clipping(const Config& config, const TransformerStage& stage, const RankFacts& facts) {
  const Precision precision = precision_of(config.training);
  const auto size = static_cast<double>(size_of(precision.compute)), wide = static_cast<double>(size_of(accumulator_of(precision.compute)));
  const double t = static_cast<double>(config.parallel.tensor), p = static_cast<double>(config.parallel.pipeline), m = facts.microbatches;
  const auto samples = static_cast<double>(config.training.micro_batch_size), layers = static_cast<double>(stage.range().blocks);
  const double residual = samples * static_cast<double>(config.training.sequence_length * config.model.hidden_size);
  double partial = 0;
  for (const Unit* unit : stage.params().units())
    for (const auto& param : unit->params())
      for (const ParamSpec& spec : param->specs)
        if (spec.partial_over != Partial::kNone) partial += static_cast<double>(spec.numel());
  Wire wire;
  wire.tensor = m * 2 * (t - 1) / t * samples * (partial * wide + 8);
  if (config.parallel.sequence_parallel) wire.tensor += m * layers * 2 * (t - 1) / t * residual * size;
  wire.pipeline = m * 2 * (p - 1) / p * samples * 8;
  if (std::ranges::find(facts.unit_tied, true) != facts.unit_tied.end()) wire.embedding = m * residual * wide;  // a broadcast over both stages
  return wire;
}

void check_private_wire(ParityModel model, const ParityLayout& layout, const char* precision) {
  Config config = parity_config(model, layout, precision);
  config.parallel.schedule = "gpipe";
  config.security.privacy = {.clip = 0.5, .noise = 0.3, .target_epsilon = {}, .delta = 1e-5, .key_file = "key"};
  std::vector<CommunicationRecord> records;
  std::vector<Wire> plain(static_cast<size_t>(layout.world())), clipping = plain;
  run_ranks(layout.world(),
            [&](Communicator& world) {
              Arena arena(Device::kReference);
              Context ctx{Device::kReference, &arena, 1, nullptr};
              Trainer trainer(ctx, world, config, true);
              trainer.set_privacy(test_random(), 0.3);
              trainer.initialise();
              trainer.step(RaggedDataset(29, config.training.sequence_length, *config.model.vocab_size), 0, 1e-3);
              const auto rank = static_cast<size_t>(world.rank());
              const RankFacts facts = facts_of(trainer);
              plain[rank] = closed_form(config, facts);
              clipping[rank] = for_clipping(config, trainer.stage(), facts);
            },
            {.records = &records});
  for (size_t rank = 0; rank < records.size(); ++rank) {
    INFO(name_of(model) << " " << layout.str() << " " << precision << ", rank " << rank);
    CHECK(records[rank].wire_bytes("tensor") == Approx(plain[rank].tensor + clipping[rank].tensor).epsilon(1e-12));
    CHECK(records[rank].wire_bytes("pipeline") == Approx(plain[rank].pipeline + clipping[rank].pipeline).epsilon(1e-12));
    CHECK(records[rank].wire_bytes("embedding") == Approx(plain[rank].embedding + clipping[rank].embedding).epsilon(1e-12));
    CHECK(records[rank].wire_bytes("world") == Approx(plain[rank].world).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("bytes on the wire of a private step match the headers' formulas") {
  for (const ParityModel model : {ParityModel::kGpt2, ParityModel::kLlamaGrouped, ParityModel::kLlama}) {
    for (const bool sp : {false, true}) {
      for (const int data : {1, 2}) {
        ParityLayout layout;
        layout.tensor = 2;
        layout.pipeline = 2;
        layout.data = data;
        layout.zero = data == 2 ? 3 : 0;
        layout.sequence_parallel = sp;
        layout.micro_batch = data == 1 ? 2 : 1;
        for (const char* precision : {"fp32", "bf16"}) check_private_wire(model, layout, precision);
      }
    }
  }
}

}  // namespace trireme::test
