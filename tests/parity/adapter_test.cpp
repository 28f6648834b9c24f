// Adapters (LoRA): step 0 is the base model bit for bit, the base keeps every bit, and every layout trains what one rank trains.
#include <algorithm>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/model/declare.h"
#include "trainer/model/flops.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

/// Every linear layer; layers that split outputs, and one that splits inputs, of some blocks; keys, which tensor ranks may share.
const AdapterConfig kAll{.rank = 3, .alpha = 6};
const AdapterConfig kSome{.rank = 2, .alpha = 5, .scale = AdapterScale::kAlphaOverRootRank, .targets = {"query", "value", "blocks.1.mlp.down"}};
const AdapterConfig kKeys{.rank = 4, .alpha = 4, .targets = {"key", "output", "blocks.3.*"}};

struct AdapterCase {
  ParityModel model;
  ParityLayout layout;
  AdapterConfig adapter;
  std::vector<std::string> frozen = {};
  std::string str() const { return concat(name_of(model), " ", layout.str(), " rank ", adapter.rank); }
};

std::vector<AdapterCase> cases() {
  return {{ParityModel::kLlamaGrouped, {{.tensor = 2}}, kAll},
          {ParityModel::kLlamaGrouped, {{.data = 3, .zero = 1}}, kSome},
          {ParityModel::kLlamaGrouped, {{.tensor = 4, .data = 2, .zero = 3}}, kKeys},
          {ParityModel::kLlamaGrouped, {{.pipeline = 2, .data = 4, .zero = 2, .replicate = 2}}, kAll},
          {ParityModel::kLlamaGrouped, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}, kSome},
          {ParityModel::kGpt2, {{.tensor = 2, .data = 2, .zero = 2, .sequence_parallel = true}}, kAll},
          {ParityModel::kGpt2Dropout, {{.pipeline = 2, .data = 2, .zero = 3, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}, kKeys},
          {ParityModel::kGptNeoX, {{.tensor = 2, .pipeline = 3, .zero = 0}}, kAll},
          {ParityModel::kLlama, {{.pipeline = 2, .data = 2, .zero = 3, .schedule = ScheduleKind::kZbH1}}, kSome, {"*.weight"}},
          {ParityModel::kLlama, {{.tensor = 3, .pipeline = 2, .sequence_parallel = true, .schedule = ScheduleKind::kZbH1}}, kAll},
          {ParityModel::kGemma3, {{.tensor = 2, .data = 4, .zero = 3, .replicate = 2}}, kAll},
          {ParityModel::kGemma3, {{.data = 2, .zero = 2}, /*prefetch=*/1, {}, 1, true, /*bucket_blocks=*/2}, kSome}};
}

Config config_of(const AdapterCase& one, const ParityLayout& layout, const std::string& precision = "fp64") {
  Config config = parity_config(one.model, layout, precision);
  config.model.adapter = one.adapter;
  config.model.frozen = one.frozen;
  return config;
}

/// The loss of the first step, from the run's own initial weights.
double first_loss(const Config& config) {
  double loss = 0;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const double of_step = trainer.step(kData, 0, 3e-3).loss;
    if (trainer.mesh().world.rank() == 0) loss = of_step;
  });
  return loss;
}

}  // namespace

TEST_CASE("adapter: twelve layouts train what one rank trains, to 1e-10") {
  for (const AdapterCase& one : cases()) {
    INFO(one.str());
    const RunRecord serial = train_on_threads(config_of(one, one.layout.on_one_rank()), 4, Device::kReference);
    CHECK(difference(serial, train_on_threads(config_of(one, one.layout), 4, Device::kReference, true), 1e-10) == "");
  }
}

TEST_CASE("adapter: the base keeps every bit, and A and B both learn") {
  for (const AdapterCase& one : cases()) {
    INFO(one.str());
    const Config config = config_of(one, one.layout);
    const RunRecord record = record_on_threads(config, kData, Device::kReference);
    int64_t adapters = 0;
    for (const ParamSpec& spec : whole_model(config.model)) {
      INFO(spec.name);
      CHECK(same_bits(record.initial_weight.at(spec.name), record.weight.at(spec.name)) == !spec.trainable);
      CHECK(record.first_gradient.contains(spec.name) == spec.trainable);
      adapters += is_adapter(spec.name) ? 1 : 0;
    }
    CHECK(adapters > 0);
  }
}

TEST_CASE("adapter: the first step has the loss of the base model bit for bit, in every precision") {
  for (const char* precision : {"fp64", "fp32", "bf16", "fp16"}) {
    for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
      INFO(precision << " " << name_of(model));
      const AdapterCase one{model, {{.tensor = 2}}, kAll};
      const Config config = config_of(one, one.layout, precision);
      Config base = config;
      base.model.adapter = {};
      CHECK(first_loss(config) == first_loss(base));
    }
  }
}

TEST_CASE("adapter: memory is forecast to the byte, and a frozen base has no gradient and no state") {
  for (const AdapterCase& one : cases()) {
    INFO(one.str());
    const Config config = config_of(one, one.layout, "fp32");
    const MeasuredRun run = measured_run(config, kData);
    for (size_t rank = 0; rank < run.memory.size(); ++rank) checked_forecast(config, run, static_cast<int>(rank));
    const int64_t all = parameter_count(config.model), trained = trainable_count(config.model);
    CHECK(state_bytes(config) == 4 * (all + 2 * trained));
    if (!one.frozen.empty()) continue;
    std::map<std::string, std::array<int64_t, 2>> shapes;
    for (const ParamSpec& spec : whole_model(config.model)) shapes[spec.name] = spec.shape;
    int64_t by_formula = 0;  // r (inputs + outputs) of each adapted layer
    for (int64_t block = 0; block < config.model.layers; ++block)
      for (const std::string& layer : block_spec(config.model, block).adapter.layers) {
        const auto& [outputs, inputs] = shapes.at(concat("blocks.", block, ".", layer, ".weight"));
        by_formula += one.adapter.rank * (inputs + outputs);
      }
    CHECK(trained == by_formula);
  }
}

TEST_CASE("adapter: a resume restores the state bit for bit, in the same layout and any other") {
  const TemporaryDirectory directory;
  const AdapterCase first{ParityModel::kLlamaGrouped, {{.tensor = 4, .data = 2, .zero = 3}}, kAll};
  GatheredState trained, through;
  train_with_save(config_of(first, first.layout, "fp32"), kData, directory.path, trained, through);
  for (const AdapterCase& one : cases()) {
    if (one.model != first.model) continue;
    INFO(one.str());
    const AdapterCase same{one.model, one.layout, first.adapter};
    GatheredState loaded, further;
    continue_from_save(config_of(same, same.layout, "fp32"), kData, directory.path, loaded, further);
    CHECK(loaded.whole() == trained.whole());
    if (one.layout == first.layout) CHECK(further.whole() == through.whole());
  }
}

}  // namespace trireme::test
