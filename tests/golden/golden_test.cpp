// Compares ten losses and gradient norms of models of both families with PyTorch (scripts/golden.py), from the same initial weights, data and
// hyperparameters.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

/// The samples of scripts/golden.py: sample = step * global batch + row, in order.
class GoldenDataset final : public Dataset {
 public:
  GoldenDataset(int64_t steps, int64_t batch, int64_t length, int64_t vocab, uint64_t seed)
      : steps_(steps), batch_(batch), length_(length), vocab_(vocab), key_(random_key(seed, "golden")) {}
  int64_t sequences() const override { return steps_ * batch_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    segments.push_back(length_);
    const int64_t s = sample / batch_, b = sample % batch_;
    const auto token = [&](int64_t t) {
      return static_cast<int32_t>(random_bits(key_, static_cast<uint64_t>(sample * (length_ + 1) + t)) % static_cast<uint64_t>(vocab_));
    };
    for (int64_t t = 0; t < length_; ++t) {
      tokens[t] = token(t);
      targets[t] = (s + 3 * b + 5 * t) % 7 == 0 ? -1 : token(t + 1);
    }
  }

 private:
  int64_t steps_, batch_, length_, vocab_;
  uint64_t key_;
};

/// Returns the samples of a step in order, independent of the sampler's permutation.
class InOrder final : public Dataset {
 public:
  InOrder(const Dataset& data, const Sampler& sampler, int64_t steps) : data_(data), order_(static_cast<size_t>(data.sequences())) {
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t i = 0; i < sampler.global_batch(); ++i) order_[static_cast<size_t>(sampler.sample(s, i))] = s * sampler.global_batch() + i;
  }
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(order_[static_cast<size_t>(sample)], tokens, targets, segments);
  }

 private:
  const Dataset& data_;
  std::vector<int64_t> order_;
};

Config config_of(const nlohmann::json& golden) {
  Config config;
  const auto& model = golden["model"];
  config.run.seed = golden["seed"];
  config.model.architecture = OneOf<Architecture>(model["architecture"].get<std::string>());
  config.model.layers = model["layers"];
  config.model.hidden_size = model["hidden_size"];
  config.model.heads = model["heads"];
  config.model.kv_heads = model["kv_heads"].get<int64_t>();
  config.model.head_size = model["head_size"].get<int64_t>();
  config.model.ffn_size = model["ffn_size"].get<int64_t>();
  config.model.vocab_size = model["vocab_size"].get<int64_t>();
  config.model.max_positions = golden["sequence_length"].get<int64_t>();
  config.model.tied_embeddings = model["tied_embeddings"];
  config.model.qkv_bias = model.value("qkv_bias", config.model.qkv_bias);
  config.model.qk_norm = model.value("qk_norm", config.model.qk_norm);
  config.model.rope_theta = model.value("rope_theta", config.model.rope_theta);
  if (model.contains("rope_scaling")) {
    const auto& scaling = model["rope_scaling"];
    config.model.rope_scaling = {OneOf<RopeScaling>(scaling["type"].get<std::string>()), scaling["factor"], scaling["low_frequency_factor"],
                                 scaling["high_frequency_factor"], scaling["original_max_positions"]};
  }
  if (model.contains("window")) {
    config.model.window = model["window"].get<int64_t>();
    config.model.window_layers = model["window_layers"].get<std::vector<int64_t>>();
    config.model.window_rope_theta = model["window_rope_theta"].get<double>();
    config.model.attention_scale = model["attention_scale"].get<double>();
  }
  config.model.norm_epsilon = model["norm_epsilon"];
  config.model.init_std = model["init_std"];
  config.parallel.virtual_stages = 1;
  config.parallel.layers_per_stage = std::vector<int64_t>{model["layers"].get<int64_t>()};
  config.training.sequence_length = golden["sequence_length"];
  config.training.global_batch_size = golden["global_batch_size"];
  config.training.micro_batch_size = 2;
  config.training.precision = OneOf<Arithmetic>(golden["precision"].get<std::string>());
  const auto& optimizer = golden["optimizer"];
  config.training.gradient_clip = optimizer["gradient_clip"];
  config.training.optimizer.name = OneOf<Optimizer>(optimizer.value("name", "adamw"));
  config.training.optimizer.momentum = optimizer.value("momentum", config.training.optimizer.momentum);
  if (optimizer.contains("update_scale")) config.training.optimizer.update_scale = OneOf<MuonScale>(optimizer["update_scale"].get<std::string>());
  config.training.optimizer.beta1 = optimizer["beta1"];
  config.training.optimizer.beta2 = optimizer["beta2"];
  config.training.optimizer.epsilon = optimizer["epsilon"];
  config.training.optimizer.weight_decay = optimizer["weight_decay"];
  return config;
}

void set_linear_biases(Trainer& trainer, uint64_t seed, double standard_deviation) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    if (!owned.spec->name.ends_with(".bias") || owned.spec->name.ends_with("norm.bias")) continue;
    const uint64_t key = random_key(seed, "init:" + owned.spec->name);
    for (int64_t i = 0; i < owned.box.numel(); ++i) {
      const double value = standard_deviation * random_normal(key, static_cast<uint64_t>(owned.box.start[0] + i));
      dispatch_float(owned.weight.dtype(), [&](auto zero) { owned.weight.data<decltype(zero)>()[i] = static_cast<decltype(zero)>(value); });
    }
  }
  trainer.weights_changed();
}

void check(const std::string& file, double first_tolerance, double last_tolerance) {
  std::ifstream stream(in_checkout("tests/golden/") + file);
  REQUIRE(stream);
  const nlohmann::json golden = nlohmann::json::parse(stream);
  const Config config = config_of(golden);
  const Device device = config.training.precision == Arithmetic::kFp64 ? Device::kReference : Device::kCpu;
  Arena arena(device, true);
  Context ctx{device, &arena, 1, nullptr};
  SelfCommunicator world("world");
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const auto seed = static_cast<uint64_t>(config.run.seed);
  set_linear_biases(trainer, seed, golden["model"].value("bias_std", 0.0));
  const int64_t steps = golden["steps"];
  const GoldenDataset data(steps, config.training.global_batch_size, config.training.sequence_length, *config.model.vocab_size, seed);
  const InOrder in_order(data, {seed, data.groups(), config.training.global_batch_size}, steps);
  for (int64_t s = 0; s < steps; ++s) {
    const StepResult result = trainer.step(in_order, s, golden["optimizer"]["learning_rate"]);
    // The two computations diverge step by step: the tolerance grows exponentially from that of the first step to that of the last.
    const double tolerance = first_tolerance * std::pow(last_tolerance / first_tolerance, static_cast<double>(s) / static_cast<double>(steps - 1));
    INFO(file << " step " << s + 1);
    CHECK(result.loss == Approx(golden["loss"][static_cast<size_t>(s)].get<double>()).epsilon(tolerance));
    CHECK(result.grad_norm == Approx(golden["grad_norm"][static_cast<size_t>(s)].get<double>()).epsilon(tolerance));
  }
}

}  // namespace

TEST_CASE("fp64 training matches PyTorch to 1e-9") {
  for (const char* file : {"llama_fp64.json", "llama3_fp64.json", "qwen2_fp64.json", "qwen3_fp64.json", "gpt2_fp64.json", "gpt_neox_fp64.json",
                           "gemma3_fp64.json", "muon_fp64.json", "muon_spectral_fp64.json"})
    check(file, 1e-9, 1e-9);
}

TEST_CASE("fp32 training matches PyTorch to 1e-5 at step 1 and 1e-4 at step 10") {
  for (const char* file : {"llama_fp32.json", "llama3_fp32.json", "qwen2_fp32.json", "qwen3_fp32.json", "gpt2_fp32.json", "gpt_neox_fp32.json",
                           "gemma3_fp32.json", "muon_fp32.json", "muon_spectral_fp32.json"})
    check(file, 1e-5, 1e-4);
}

}  // namespace trireme::test
