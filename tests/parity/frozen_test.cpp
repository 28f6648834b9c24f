// Frozen parameters keep every bit, have no gradient and no state, and change nothing of what the other parameters learn.
#include <algorithm>
#include <functional>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/private_random.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/model/declare.h"
#include "trainer/model/flops.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

using Patterns = std::vector<std::string>;

/// Whole parts, parts of blocks, single norms, and a tied embedding.
const Patterns kMixed{"embedding.weight", "blocks.0.*", "blocks.2.attention.*", "*.mlp_norm.*", "blocks.4.mlp.down.weight"};
/// All weights of all layers, as BitFit does. One vector of each LayerNorm is trained, the other is not.
const Patterns kAllButBiases{"*.weight"};
/// Stages of a pipeline without anything to train.
const Patterns kAllButTheHead{"embedding.*", "blocks.*", "positions.*"};

struct FrozenCase {
  ParityModel model;
  ParityLayout layout;
  Patterns frozen;
  std::string str() const { return std::string(name_of(model)) + " " + layout.str() + " " + frozen.front(); }
};

std::vector<FrozenCase> cases() {
  return {{ParityModel::kLlamaGrouped, {{.tensor = 2}}, kMixed},
          {ParityModel::kLlamaGrouped, {{.data = 3, .zero = 1}}, kMixed},
          {ParityModel::kLlamaGrouped, {{.tensor = 4, .data = 2, .zero = 3}}, kMixed},
          {ParityModel::kLlamaGrouped, {{.pipeline = 2, .data = 4, .zero = 2, .replicate = 2}}, kMixed},
          {ParityModel::kLlamaGrouped, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}, kMixed},
          {ParityModel::kGpt2, {{.tensor = 2, .data = 2, .zero = 2, .sequence_parallel = true}}, kAllButBiases},
          {ParityModel::kGpt2, {{.pipeline = 2, .data = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}, kAllButBiases},
          {ParityModel::kGptNeoX, {{.tensor = 2, .pipeline = 3, .zero = 0}}, kAllButBiases},
          {ParityModel::kLlama, {{.pipeline = 3, .data = 2, .zero = 3}}, kAllButTheHead},
          {ParityModel::kLlama, {{.tensor = 2, .pipeline = 2, .schedule = ScheduleKind::kZbH1}}, kAllButTheHead},
          {ParityModel::kGemma3, {{.tensor = 2, .data = 4, .zero = 3, .replicate = 2}}, kMixed},
          {ParityModel::kGemma3, {{.data = 2, .zero = 2}, /*prefetch=*/1, {}, 1, true, /*bucket_blocks=*/2}, kMixed}};
}

Config config_of(const FrozenCase& one, const ParityLayout& layout, const std::string& precision = "fp64") {
  Config config = parity_config(one.model, layout, precision);
  config.model.frozen = one.frozen;
  return config;
}

/// Names of frozen parameters that have changed, have a gradient or an average, and of others that have not changed or have no gradient.
std::vector<std::string> wrong_parameters(const Config& config, const RunRecord& record) {
  std::vector<std::string> wrong;
  for (const ParamSpec& spec : whole_model(config.model)) {
    const bool changed = !same_bits(record.initial_weight.at(spec.name), record.weight.at(spec.name));
    const bool has_gradient = record.first_gradient.contains(spec.name);
    const bool has_average = config.training.ema.decay && record.average.contains(spec.name);
    if (spec.trainable != changed || spec.trainable != has_gradient || (!spec.trainable && has_average)) wrong.push_back(spec.name);
  }
  return wrong;
}

}  // namespace

TEST_CASE("frozen: twelve layouts train what one rank trains, to 1e-10") {
  for (const FrozenCase& one : cases()) {
    INFO(one.str());
    const RunRecord serial = train_on_threads(config_of(one, one.layout.on_one_rank()), 4, Device::kReference);
    CHECK(difference(serial, train_on_threads(config_of(one, one.layout), 4, Device::kReference, true), 1e-10) == "");
  }
}

TEST_CASE("frozen: parameters keep every bit, and what is trained has the gradient of a run in which everything is") {
  for (const FrozenCase& one : cases()) {
    INFO(one.str());
    Config config = config_of(one, one.layout);
    config.training.gradient_clip = 0;
    const RunRecord record = record_on_threads(config, kData, Device::kReference);
    CHECK(wrong_parameters(config, record).empty());
    Config whole = config;
    whole.model.frozen.clear();
    const RunRecord all = record_on_threads(whole, kData, Device::kReference);
    double squares = 0;
    for (const auto& [name, gradient] : record.first_gradient) {
      INFO(name);
      CHECK(same_bits(gradient, all.first_gradient.at(name)));
      for (const double g : gradient.values) squares += g * g;
    }
    CHECK(record.grad_norm.front() == Approx(std::sqrt(squares)).epsilon(1e-12));
  }
}

TEST_CASE("frozen: every optimizer and the moving average leave frozen parameters alone, in 16 bits too") {
  for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kLion, Optimizer::kSgd, Optimizer::kMuon}) {
    for (const char* precision : {"fp32", "bf16"}) {
      ParityLayout layout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}};
      layout.optimizer = optimizer;
      layout.ema = 0.9;
      const Config config = config_of({ParityModel::kLlamaGrouped, layout, kMixed}, layout, precision);
      INFO(traits_of(optimizer).name << " " << precision);
      CHECK(wrong_parameters(config, record_on_threads(config, kData, Device::kCpu)).empty());
    }
  }
}

TEST_CASE("frozen: memory is forecast to the byte, and a frozen parameter takes its weight alone") {
  for (const FrozenCase& one : cases()) {
    INFO(one.str());
    const Config config = config_of(one, one.layout, "fp32");
    const MeasuredRun run = measured_run(config, kData);
    for (size_t rank = 0; rank < run.memory.size(); ++rank) checked_forecast(config, run, static_cast<int>(rank));
    const int64_t all = parameter_count(config.model), trained = trainable_count(config.model);
    CHECK(trained < all);
    CHECK(state_bytes(config) == 4 * (all + 2 * trained));
    const Config narrow = config_of(one, one.layout, "bf16");
    CHECK(state_bytes(narrow) == 2 * (all - trained) + 12 * trained);
  }
}

TEST_CASE("frozen: a resume restores the state bit for bit, in the same layout and any other") {
  const TemporaryDirectory directory;
  const FrozenCase first{ParityModel::kLlamaGrouped, {{.tensor = 4, .data = 2, .zero = 3}}, kMixed};
  GatheredState trained, through;
  train_with_save(config_of(first, first.layout, "fp32"), kData, directory.path, trained, through);
  const ModelConfig model = config_of(first, first.layout).model;
  for (const auto& [name, values] : read_whole(directory.path / checkpoint_name(3))) {
    const size_t slash = name.find('/');
    INFO(name);
    CHECK((name.substr(0, slash) == "weight" || !is_frozen(model, name.substr(slash + 1))));
  }
  for (const FrozenCase& one : cases()) {
    if (one.model != first.model) continue;
    INFO(one.str());
    GatheredState loaded, further;
    continue_from_save(config_of(one, one.layout, "fp32"), kData, directory.path, loaded, further);
    CHECK(loaded.whole() == trained.whole());
    if (one.layout == first.layout) CHECK(further.whole() == through.whole());
  }
}

TEST_CASE("frozen: in 16 bits a checkpoint has frozen weights as the layers read them, and a resume has their bits") {
  for (const auto& [precision, dtype] : {std::pair{"bf16", DType::kBF16}, {"fp16", DType::kF16}}) {
    INFO(precision);
    const TemporaryDirectory directory;
    const FrozenCase first{ParityModel::kLlamaGrouped, {{.tensor = 2, .data = 2, .zero = 3}}, kMixed};
    const FrozenCase other{ParityModel::kLlamaGrouped, {{.pipeline = 2, .data = 2, .zero = 1}}, kMixed};
    GatheredState trained, loaded;
    on_ranks(config_of(first, first.layout, precision), [&](Trainer& trainer) {
      trainer.initialise();
      for (int step = 0; step < 2; ++step) trainer.step(kData, step, 3e-3);
      trained.add(trainer);
      save(trainer, directory.path, 2);
    });
    on_ranks(config_of(other, other.layout, precision), [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(2));
      for (const ParamSpec& spec : whole_model(trainer.config().model))
        TRIREME_CHECK(reader.tensor("weight/" + spec.name).dtype == (spec.trainable ? DType::kF32 : dtype), spec.name);
      load_state(trainer, reader);
      loaded.add(trainer);
    });
    CHECK(loaded.whole() == trained.whole());
    if (precision == std::string("fp16")) continue;
    on_ranks(config_of(other, other.layout, "fp32"), [&](Trainer& trainer) {  // as training.precision may change
      CheckpointReader reader(directory.path / checkpoint_name(2));
      load_state(trainer, reader);
      TRIREME_CHECK(trainer.step(kData, 2, 3e-3).accepted, "rejected");
    });
  }
}

TEST_CASE("frozen: the moving average of a checkpoint has frozen parameters as they are") {
  const TemporaryDirectory directory;
  ParityLayout layout{{.data = 2, .zero = 1}};
  layout.ema = 0.9;
  const Config config = config_of({ParityModel::kLlamaGrouped, layout, kMixed}, layout, "fp32");
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 2; ++step) trainer.step(kData, step, 3e-3);
    save(trainer, directory.path, 2);
  });
  const auto saved = read_whole(directory.path / checkpoint_name(2));
  WeightSource source(directory.path / checkpoint_name(2), WeightKind::kAverage);
  CHECK(source.names().size() == whole_model(config.model).size());
  for (const ParamSpec& spec : whole_model(config.model)) {
    INFO(spec.name);
    std::vector<char> values(static_cast<size_t>(spec.shape[0] * spec.shape[1] * 4));
    source.read(spec.name, Box{{0, 0}, spec.shape}, DType::kF32, values.data());
    CHECK(values == saved.at((spec.trainable ? "ema/" : "weight/") + spec.name));
  }
}

TEST_CASE("frozen: islands, servers, compressed sums, robust rules and noise leave frozen parameters alone") {
  const auto base = [](const char* spec, ParityModel model = ParityModel::kLlamaGrouped) {
    ParityLayout layout;
    static_cast<Layout&>(layout) = parse_layout(spec);
    Config config = parity_config(model, layout, "fp32");
    config.model.frozen = kMixed;
    config.training.steps = 1000;  // no round is cut short
    return config;
  };
  std::vector<std::pair<std::string, Config>> all;
  const auto add = [&](const std::string& name, Config config, const std::function<void(Config&)>& change) {
    change(config);
    all.emplace_back(name, std::move(config));
  };
  const auto island = [](Config& c, int islands) {
    c.parallel.islands = islands;
    c.training.global_batch_size = 12;
  };
  const auto asynchronous = [&](AsynchronousMode mode) {
    return [&, mode](Config& c) {
      island(c, 2);
      c.training.asynchronous.mode = mode;
      c.training.asynchronous.steps = 3;
      if (mode == AsynchronousMode::kHogwild) c.training.optimizer.name = Optimizer::kSgd;
      if (mode == AsynchronousMode::kElasticAveraging) c.training.asynchronous.every = 1, c.training.asynchronous.moving_rate = 0.3;
    };
  };
  for (const int64_t fragments : {1, 3})
    add("outer steps", base("dp2z3"), [&](Config& c) {
      island(c, 3);
      c.training.global_batch_size = 12;
      c.training.local = {.steps = 3, .fragments = fragments, .blend = fragments > 1 ? 0.5 : 1.0};
    });
  add("server", base("dp2z1"), asynchronous(AsynchronousMode::kParameterServer));
  add("elastic averaging", base("tp2"), asynchronous(AsynchronousMode::kElasticAveraging));
  add("hogwild", base("pp2"), asynchronous(AsynchronousMode::kHogwild));
  const auto compressed = [](CompressionMethod method) {
    return [method](Config& c) {
      c.training.compression.method = method;
      c.training.compression.rank = 2;
    };
  };
  add("int8", base("dp4rep2z1"), compressed(CompressionMethod::kInt8));
  add("low rank", base("dp2z1"), compressed(CompressionMethod::kPowerSgd));
  add("int8 gathers", base("dp2z3"), [](Config& c) { c.training.compression.parameters = ParameterEncoding::kInt8; });
  for (const AggregationRule rule : {AggregationRule::kMedian, AggregationRule::kCenteredClipping})
    add("robust rule", base("dp4rep2z1"), [&](Config& c) {
      c.security.aggregation.rule = rule;
      c.security.aggregation.byzantine = 1;
      c.security.aggregation.momentum = rule == AggregationRule::kMedian ? 0 : 0.9;
    });
  add("noise", base("pp2dp2z2"),
      [](Config& c) { c.security.privacy = {.clip = 0.5, .noise = 1.0, .target_epsilon = {}, .delta = 1e-5, .key_file = "key"}; });
  for (const auto& [name, config] : all) {
    INFO(name << " " << config.parallel.zero_stage);
    const TemporaryDirectory directory;
    on_ranks(config, [&, &run = config](Trainer& trainer) {
      if (is_private(run.security)) trainer.set_privacy(test_random(), *run.security.privacy.noise);
      trainer.initialise();
      save(trainer, directory.path, 1);
      for (int step = 0; step < 3; ++step) trainer.step(kData, step, 3e-3);
      save(trainer, directory.path, 3);
    });
    const auto before = read_whole(directory.path / checkpoint_name(1)), after = read_whole(directory.path / checkpoint_name(3));
    for (const ParamSpec& spec : whole_model(config.model)) {
      INFO(spec.name);
      CHECK((before.at("weight/" + spec.name) == after.at("weight/" + spec.name)) == !spec.trainable);
      for (const auto& [stored, values] : after)
        if (!spec.trainable && stored.ends_with("/" + spec.name)) CHECK(stored == "weight/" + spec.name);
    }
  }
}

TEST_CASE("frozen: weight gradients of frozen matrices cost no FLOPs") {
  const FrozenCase one{ParityModel::kLlama, {{.tensor = 1}}, {"blocks.1.*"}};
  Config config = config_of(one, one.layout);
  const double frozen = training_flops_per_token(config.model, 12);
  config.model.frozen.clear();
  int64_t matrices = 0;
  for (const ParamSpec& spec : whole_model(config.model))
    if (spec.name.starts_with("blocks.1.") && spec.dims == 2) matrices += spec.shape[0] * spec.shape[1];
  CHECK(training_flops_per_token(config.model, 12) - frozen == Approx(2.0 * static_cast<double>(matrices)));
}

}  // namespace trireme::test
