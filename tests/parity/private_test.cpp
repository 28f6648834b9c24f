// Differentially private training: a step's gradient equals the sum of clipped gradients of single samples, noise included, under every layout.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "tests/parity/by_hand.h"
#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/private_random.h"

namespace trireme::test {
namespace {

Config with_privacy(Config config, double clip, double noise) {
  config.security.privacy = {.clip = clip, .noise = noise, .target_epsilon = {}, .delta = 1e-5, .key_file = "key"};
  return config;
}

Config config_of(ParityModel model, const std::string& spec, double clip, double noise, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  return with_privacy(parity_config(model, layout, precision), clip, noise);
}

bool supports(const Config& config) { return *config.model.kv_heads % config.parallel.tensor == 0; }

/// The clipped gradients of the drawn samples, added up and divided by the expected number of samples. One that is not finite is left out.
std::vector<double> by_hand(const Config& config, const std::vector<std::vector<double>>& gradients, int64_t step) {
  const auto count = static_cast<int64_t>(gradients.size());
  const auto batch = static_cast<double>(config.training.global_batch_size);
  std::vector<double> sum(gradients.front().size());
  for (const int64_t sample : test_random().poisson_sample(step, count, batch / static_cast<double>(count))) {
    const std::vector<double>& gradient = gradients[static_cast<size_t>(sample)];
    const double norm = norm_of(gradient);
    if (!std::isfinite(norm)) continue;
    const double factor = norm > 0 ? std::min(1.0, *config.security.privacy.clip / norm) : 1;
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += factor * gradient[k] / batch;
  }
  return sum;
}

/// The largest difference between the gradient of a layout's step and `expected`, relative to the largest element.
double error_of(
    const Config& config, const std::vector<double>& expected, int64_t step, const Prepare& prepare = [](Trainer&) {}) {
  double worst = 0;
  std::mutex mutex;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.set_privacy(test_random(), *config.security.privacy.noise);
    trainer.initialise();
    prepare(trainer);
    TRIREME_CHECK(trainer.step(ragged_data(config), step, 0).accepted, "the step was rejected");
    const std::vector<double> gradient = gathered_gradient(trainer);
    TRIREME_CHECK(gradient.size() == expected.size(), gradient.size(), " elements, expected ", expected.size());
    const std::lock_guard lock(mutex);
    for (size_t k = 0; k < gradient.size(); ++k) worst = std::max(worst, std::isnan(gradient[k]) ? HUGE_VAL : std::abs(gradient[k] - expected[k]));
  });
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return worst / largest;
}

/// The norm that about half of the samples exceed.
double median_norm(const std::vector<std::vector<double>>& gradients) {
  std::vector<double> norms;
  for (const std::vector<double>& gradient : gradients) norms.push_back(norm_of(gradient));
  std::ranges::sort(norms);
  return norms[norms.size() / 2];
}

}  // namespace

TEST_CASE("private: a step's gradient is the sum of clipped gradients of single samples") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
    const std::vector<std::vector<double>> gradients = gradients_of_samples(config_of(model, "dp1", 1, 0));
    const double clip = median_norm(gradients);
    for (const char* layout : {"dp1", "dp1z0-mb3", "pp2dp1", "pp4dp1-zb_h1", "pp2dp1-zb_v", "pp2dp1-interleaved_1f1b", "tp2dp1", "tp2dp1-sp-mb3",
                               "dp3z3", "dp4rep2z2", "tp2pp2dp2z3-sp"}) {
      Config config = config_of(model, layout, clip, 0);
      INFO(name_of(model) << " " << layout);
      CHECK(error_of(config, by_hand(config, gradients, 3), 3) < 1e-10);
    }
  }
}

TEST_CASE("private: a step's gradient is the sum of clipped gradients if branches share their gradient, and with post-norms") {
  ParityLayout layout;
  layout.block = ParityBlock::kOtherResidual;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
    const std::vector<std::vector<double>> gradients = gradients_of_samples(with_privacy(parity_config(model, layout, "fp64"), 1, 0));
    const double clip = median_norm(gradients);
    for (const char* spec : {"dp1", "tp2dp1-sp-mb3", "tp2pp2dp2z3"}) {
      ParityLayout other = layout;
      static_cast<Layout&>(other) = parse_layout(spec);
      const Config config = with_privacy(parity_config(model, other, "fp64"), clip, 0);
      INFO(name_of(model) << " " << spec);
      CHECK(error_of(config, by_hand(config, gradients, 3), 3) < 1e-10);
    }
  }
}

TEST_CASE("private: frozen parameters have no part in a sample's gradient") {
  const std::pair<ParityModel, std::vector<std::string>> cases[] = {
      {ParityModel::kLlamaGrouped, {"embedding.weight", "blocks.0.*", "blocks.2.attention.*", "*.mlp_norm.*"}},
      {ParityModel::kLlama, {"head.weight", "blocks.*.mlp.*"}},
      {ParityModel::kGpt2, {"*.weight"}},
      {ParityModel::kGpt2, {"positions.weight", "*.bias"}},
      {ParityModel::kGemma3, {"blocks.1.*", "*_norm.weight"}}};
  for (const auto& [model, frozen] : cases) {
    Config config = config_of(model, "dp1", 1, 0);
    config.model.frozen = frozen;
    const std::vector<std::vector<double>> gradients = gradients_of_samples(config);
    const double clip = median_norm(gradients);
    for (const char* layout : {"dp1", "tp2dp1-sp-mb3", "pp2dp1-zb_v", "tp2pp2dp2z3-sp"}) {
      config = config_of(model, layout, clip, 0);
      config.model.frozen = frozen;
      INFO(name_of(model) << " " << layout << " " << frozen.front());
      CHECK(error_of(config, by_hand(config, gradients, 3), 3) < 1e-10);
    }
  }
}

TEST_CASE("private: adapters have their part in a sample's gradient, and the frozen base has none") {
  const Prepare with_b = [](Trainer& trainer) {  // zeros would leave A without a gradient
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (owned.spec->name.ends_with(".lora_b.weight"))
        fill_normal(trainer.context(), random_key(7, owned.spec->name), 0.2, owned.spec->shape[1], owned.box.start[0], owned.box.start[1],
                    owned.weight.view({owned.box.extent[0], owned.box.extent[1]}));
    trainer.weights_replaced();
  };
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2}) {
    const AdapterConfig adapter{.rank = 2, .alpha = 6};
    Config config = config_of(model, "dp1", 1, 0);
    config.model.adapter = adapter;
    const std::vector<std::vector<double>> gradients = gradients_of_samples(config, with_b);
    const double clip = median_norm(gradients);
    for (const char* layout : {"dp1", "tp2dp1-sp-mb3", "pp2dp1-zb_v", "tp2pp2dp2z3-sp"}) {
      config = config_of(model, layout, clip, 0);
      config.model.adapter = adapter;
      INFO(name_of(model) << " " << layout);
      CHECK(error_of(config, by_hand(config, gradients, 3), 3, with_b) < 1e-10);
    }
  }
}

TEST_CASE("private: chunks of logits do not change what is trained") {
  for (const ParityModel model : {ParityModel::kLlama, ParityModel::kGpt2}) {
    Config config = config_of(model, "dp1-mb3", 0.3, 0.2);
    config.training.logits_chunk = 64;
    const RunRecord whole = train_on_threads(config, 2, Device::kReference);
    config.training.logits_chunk = 5;
    CHECK(difference(whole, train_on_threads(config, 2, Device::kReference), 1e-10) == "");
  }
}

TEST_CASE("private: positions under a document mask are clipped by the norm of their whole gradient") {
  ParityLayout layout;
  layout.documents = true;
  const std::vector<std::vector<double>> gradients = gradients_of_samples(with_privacy(parity_config(ParityModel::kGpt2, layout, "fp64"), 1, 0));
  const double clip = median_norm(gradients);
  for (const char* spec : {"dp1", "tp2pp2dp1-sp"}) {
    static_cast<Layout&>(layout) = parse_layout(spec);
    const Config config = with_privacy(parity_config(ParityModel::kGpt2, layout, "fp64"), clip, 0);
    INFO(spec);
    CHECK(error_of(config, by_hand(config, gradients, 3), 3) < 1e-10);
  }
}

TEST_CASE("private: the noise of a step has the standard deviation that the accountant assumes") {
  constexpr double kClip = 0.7, kNoise = 2.5;
  constexpr int64_t kStep = 5;
  for (const char* layout : {"dp1", "tp2pp2dp2z3-sp"}) {
    Config config = config_of(ParityModel::kLlama, layout, kClip, kNoise);
    std::map<std::string, std::vector<double>> noise;
    std::vector<double> silent, loud;
    for (const double amount : {0.0, kNoise}) {
      config.security.privacy.noise = amount;
      on_ranks(config, [&](Trainer& trainer) {
        trainer.set_privacy(test_random(), amount);
        trainer.initialise();
        trainer.step(ragged_data(config), kStep, 0);
        RunRecord record;
        const GlobalTensors gradients = gather(trainer, Gathered::kGradient, 1, record);
        if (trainer.mesh().world.rank() != 0) return;
        (amount > 0 ? loud : silent) = flattened(gradients);
        for (const auto& [name, tensor] : gradients) {
          noise[name].resize(tensor.values.size());
          test_random().normal(name, kStep, 0, noise[name]);
        }
      });
    }
    std::vector<double> expected;
    for (const auto& [name, values] : noise)
      for (const double value : values) expected.push_back(kNoise * kClip / static_cast<double>(config.training.global_batch_size) * value);
    REQUIRE(expected.size() == loud.size());
    double worst = 0;
    for (size_t k = 0; k < loud.size(); ++k) worst = std::max(worst, std::abs(loud[k] - silent[k] - expected[k]));
    INFO(layout);
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("private: a sample whose gradient is not finite contributes nothing") {
  // Samples with this token have no finite gradient; the weights that it reads are not shared with others.
  constexpr int64_t kToken = 7;
  const auto damage = [](Trainer& trainer) {
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      if (owned.spec->name != "embedding.weight") continue;
      for (int64_t i = 0; i < owned.box.numel(); ++i)
        if (owned.box.start[0] + i / owned.box.extent[1] == kToken) owned.weight.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
    }
    trainer.weights_changed();
  };
  const std::vector<std::vector<double>> gradients = gradients_of_samples(config_of(ParityModel::kLlama, "dp1", 1, 0), damage);
  const auto lost = std::ranges::count_if(gradients, [](const auto& gradient) { return !std::isfinite(norm_of(gradient)); });
  REQUIRE(lost > 2);
  REQUIRE(lost < 20);
  for (const char* layout : {"dp1-mb3", "tp2pp2dp2z3-sp"}) {
    const Config config = config_of(ParityModel::kLlama, layout, 0.5, 0);
    INFO(layout);
    CHECK(error_of(config, by_hand(config, gradients, 3), 3, damage) < 1e-10);
  }
}

TEST_CASE("private: no sample contributes more than the clip norm, in any precision") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      INFO(name_of(model) << ", " << precision);
      const auto gradient_of = [&](double clip) {
        Config config = config_of(model, "dp1", clip, 0, precision);
        config.training.global_batch_size = 1;
        std::vector<double> gradient;
        on_ranks(config, [&](Trainer& trainer) {
          trainer.set_privacy(test_random(), 0);
          trainer.initialise();
          trainer.step(OneSample(ragged_data(config), 5), 0, 0);  // of one sequence: always drawn
          gradient = gathered_gradient(trainer);
        });
        return gradient;
      };
      const std::vector<double> whole = gradient_of(1e9);
      const double norm = norm_of(whole), clip = 0.3 * norm;
      const std::vector<double> clipped = gradient_of(clip);
      CHECK(norm_of(clipped) <= clip * (1 + 1e-5));
      if (precision == "fp32") {
        CHECK(norm_of(clipped) >= clip * (1 - 1e-4));
        continue;
      }
      // Multiplied by a power of two, which does not round.
      size_t different = 0;
      for (size_t k = 0; k < whole.size(); ++k) different += clipped[k] == 0.25 * whole[k] ? 0 : 1;
      CHECK(different == 0);
    }
  }
}

/// Every `stride`th layout of the pairwise table from `first` on. Returns how many privacy supports.
static size_t check_pairwise(size_t first, size_t stride) {
  size_t checked = 0;
  const std::vector<ParityCase> cases = covering_parity_cases(2);
  for (size_t i = first; i < cases.size(); i += stride) {
    ParityCase each = cases[i];
    ParityLayout& layout = each.layout;
    if (layout.elastic) continue;
    layout.islands = layout.fragments = 1;  // refused, as are the next
    layout.balance = layout.rebalance = false;
    const auto private_config = [&](const ParityLayout& of) {
      Config config = with_privacy(parity_config(each.model, of, "fp64"), 0.5, 0.3);
      config.model.dropout = 0;  // refused
      return config;
    };
    const Config config = private_config(layout), serial = private_config(layout.on_one_rank());
    if (!supports(config)) continue;
    INFO(name_of(each.model) << " " << layout.str());
    const RunRecord one = train_on_threads(serial, 3, Device::kReference);
    CHECK(difference(one, train_on_threads(config, 3, Device::kReference, true), 1e-10) == "");
    ++checked;
  }
  return checked;
}

TEST_CASE("private: the layouts of the pairwise table train alike, noise included") { CHECK(check_pairwise(0, 4) > 5); }
TEST_CASE("private: all layouts of the pairwise table train alike", "[slow]") { CHECK(check_pairwise(0, 1) > 20); }

}  // namespace trireme::test
