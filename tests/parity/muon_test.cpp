// Muon updates the global matrix of each weight, so neither sharding nor tensor parallelism changes the update; its state is saved by parameter.
#include <cmath>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

Config config_of(ParityModel model, ParityLayout layout, const std::string& precision = "fp64") {
  layout.optimizer = Optimizer::kMuon;
  return parity_config(model, layout, precision);
}

/// Every way to cut a matrix: rows, columns, key and value heads shared by tensor ranks, shards that end within a row, replicas, pipelines.
std::vector<ParityCase> layouts() {
  return {{ParityModel::kLlamaGrouped, {{.tensor = 2}}},
          {ParityModel::kLlamaGrouped, {{.tensor = 4}}},
          {ParityModel::kLlamaGrouped, {{.data = 3, .zero = 1}}},
          {ParityModel::kLlamaGrouped, {{.tensor = 4, .data = 2, .zero = 3}}},
          {ParityModel::kLlamaGrouped, {{.pipeline = 2, .data = 4, .zero = 2, .replicate = 2}}},
          {ParityModel::kLlamaGrouped, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}},
          {ParityModel::kGpt2, {{.data = 4}}},
          {ParityModel::kGpt2, {{.tensor = 3, .data = 2, .zero = 1}}},
          {ParityModel::kGpt2, {{.pipeline = 2, .data = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}},
          {ParityModel::kGptNeoX, {{.tensor = 2, .pipeline = 3, .zero = 0}}},
          {ParityModel::kGemma3, {{.tensor = 2, .data = 4, .zero = 3, .replicate = 2}}},
          {ParityModel::kGemma3, {{.pipeline = 4, .data = 2, .zero = 2}}}};
}

}  // namespace

TEST_CASE("muon: twelve layouts take one rank's updates to 1e-10") {
  for (const auto& [model, layout] : layouts()) {
    INFO(name_of(model) << " " << layout.str());
    const RunRecord one = train_on_threads(config_of(model, layout.on_one_rank()), 4, Device::kReference);
    CHECK(difference(one, train_on_threads(config_of(model, layout), 4, Device::kReference, true), 1e-10) == "");
  }
}

TEST_CASE("muon: the stages of ZeRO give the same bits") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2}) {
    for (const char* precision : {"fp64", "fp32", "bf16"}) {
      const auto trained = [&](int zero) {
        // One micro-batch on each rank: with several, the stages add them up in different orders.
        Config config = config_of(model, {{.tensor = 2, .data = 2, .zero = zero, .micro_batch = 6}}, precision);
        config.training.gradient_clip = 0;  // the norm adds up the squares of other pieces with and without shards
        RunRecord record = train_on_threads(config, 4, precision == std::string("fp64") ? Device::kReference : Device::kCpu);
        if (zero == 0) record.grad_norm.clear();
        return record;
      };
      RunRecord none = trained(0), first = trained(1);
      for (const int zero : {2, 3}) {
        INFO(name_of(model) << " " << precision << " zero " << zero);
        CHECK(trained(zero) == first);
      }
      first.grad_norm.clear();
      INFO(name_of(model) << " " << precision);
      CHECK(none == first);
    }
  }
}

TEST_CASE("muon: memory is forecast to the byte, and the state is 4 bytes a weight of a block and 8 of all others") {
  for (const auto& [model, layout] : layouts()) {
    INFO(name_of(model) << " " << layout.str());
    const Config config = config_of(model, layout, "fp32");
    const MeasuredRun run = measured_run(config, kData);
    for (size_t rank = 0; rank < run.memory.size(); ++rank) checked_forecast(config, run, static_cast<int>(rank));
    int64_t hidden = 0, others = 0;
    for (const ParamSpec& spec : whole_model(config.model)) (spec.is_hidden_matrix ? hidden : others) += spec.box.numel();
    CHECK(state_bytes(config) == 4 * (hidden + 2 * others) + 4 * (hidden + others));
  }
}

TEST_CASE("muon: a resume restores the state bit for bit, in the same layout and any other") {
  const TemporaryDirectory directory;
  const ParityLayout first_layout{{.tensor = 4, .data = 2, .zero = 3}};
  const Config first = config_of(ParityModel::kLlamaGrouped, first_layout, "fp32");
  GatheredState trained, through;
  train_with_save(first, kData, directory.path, trained, through);
  int momenta = 0, moments = 0;
  for (const auto& [name, values] : read_whole(directory.path / checkpoint_name(3))) {
    const std::string kind = name.substr(0, name.find('/')), parameter = name.substr(name.find('/') + 1);
    const bool hidden = parameter.starts_with("blocks.") && parameter.ends_with(".weight") && parameter.find("norm") == parameter.npos;
    INFO(name);
    if (kind == "momentum_buffer") CHECK(hidden);
    if (kind == "exp_avg" || kind == "exp_avg_sq") CHECK(!hidden);
    momenta += kind == "momentum_buffer", moments += kind == "exp_avg";
  }
  CHECK((momenta == 5 * 7 && moments > 0));
  for (const auto& [model, layout] : layouts()) {
    if (model != ParityModel::kLlamaGrouped) continue;
    INFO(layout.str());
    GatheredState loaded, further;
    continue_from_save(config_of(model, layout, "fp32"), kData, directory.path, loaded, further);
    CHECK(loaded.whole() == trained.whole());
    if (layout == first_layout) CHECK(further.whole() == through.whole());
  }
}

TEST_CASE("muon: the change of each matrix is almost orthogonal, also of those that one parameter packs") {
  // One step from zero state: the change of a matrix, less its decay, is the learning rate times an almost orthogonal matrix.
  Config config = config_of(ParityModel::kLlama, {{.tensor = 2, .data = 2, .zero = 1}});
  config.training.optimizer.weight_decay = 0;
  config.training.optimizer.update_scale = MuonScale::kSpectral;
  RecordOptions options;
  options.steps = 1;
  options.every_state = true;
  RunRecord record;
  run_ranks(4, [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    RunRecord of_rank = record_run(trainer, kData, kData, options);
    if (world.rank() == 0) record = std::move(of_rank);
  });
  for (const char* name :
       {"blocks.2.attention.query.weight", "blocks.2.attention.key.weight", "blocks.2.mlp.gate.weight", "blocks.2.mlp.down.weight"}) {
    const GlobalTensor &before = record.initial_weight.at(name), &after = record.first_weight.at(name);
    const double scale = config.training.optimizer.learning_rate * muon_scale(MuonScale::kSpectral, before.shape);
    double squares = 0;
    for (size_t i = 0; i < before.values.size(); ++i) {
      const double moved = (after.values[i] - before.values[i]) / scale;
      squares += moved * moved;
    }
    // The sum of the squared singular values: each between 0.68 and 1.14, or below if the gradient has less than full rank.
    const auto rank = static_cast<double>(std::min(before.shape[0], before.shape[1]));
    INFO(name << ": " << squares / rank);
    CHECK(squares / rank < 1.3);
    CHECK(squares / rank > 0.4);
  }
}

}  // namespace trireme::test
