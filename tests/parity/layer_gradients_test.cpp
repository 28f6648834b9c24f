// The gradient of each layer: its norm is that of one rank in every layout, the squares of the norms add up to the global norm's, and a layer without
// a gradient is reported.
#include <cmath>
#include <cstdio>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/run/rank_figures.h"

namespace trireme::test {
namespace {

using GroupNorms = std::vector<std::pair<std::string, double>>;

struct NormedStep {
  double norm = 0;
  GroupNorms groups;
};

/// The first step of a model.
NormedStep first_step(ParityModel model, const ParityLayout& layout, const std::string& precision = "fp64", Device device = Device::kReference) {
  const Config config = parity_config(model, layout, precision);
  const RaggedDataset data(29, 12, 61);
  NormedStep result;
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(device);
    Context ctx{device, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const StepResult step = trainer.step(data, 0, 1e-3);
    GroupNorms groups;
    for (const LayerGradient& layer : trainer.layer_gradients()) groups.emplace_back(layer.layer, layer.norm);
    if (world.rank() == 0) result = {step.grad_norm, groups};
  });
  return result;
}

void check_sum(const NormedStep& step) {
  double squares = 0;
  for (const auto& [group, norm] : step.groups) squares += norm * norm;
  CHECK(std::sqrt(squares) == Approx(step.norm).epsilon(1e-12));
}

TEST_CASE("gradient norms: groups are those of one rank in every layout") {
  int layouts = 0;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    const NormedStep one = first_step(model, ParityLayout().on_one_rank());
    check_sum(one);
    std::string names;
    for (const auto& [group, norm] : one.groups) names += group + " ";
    CHECK(names == (model == ParityModel::kGpt2           ? "embedding positions blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 final_norm "
                    : model == ParityModel::kLlamaGrouped ? "embedding blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 final_norm "
                                                          : "embedding blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 final_norm head "));
    for (const char* text :
         {"tp2pp1dp1z0", "tp1pp2dp1z0", "tp1pp1dp2z3", "tp1pp1dp2z0", "tp2pp2dp2z3-sp", "dp4z2-rep2", "pp2-vpp2-interleaved_1f1b"}) {
      CAPTURE(name_of(model), text);
      ParityLayout layout;
      static_cast<Layout&>(layout) = parse_layout(text);
      if (!is_legal(model, layout)) continue;
      ++layouts;
      const NormedStep split = first_step(model, layout);
      check_sum(split);
      REQUIRE(split.groups.size() == one.groups.size());
      for (size_t i = 0; i < one.groups.size(); ++i) {
        CAPTURE(one.groups[i].first);
        CHECK(split.groups[i].first == one.groups[i].first);
        CHECK(split.groups[i].second == Approx(one.groups[i].second).epsilon(1e-10));
      }
    }
  }
  CHECK(layouts == 21);
}

TEST_CASE("gradient norms: the fast kernels too, and without the loss scale in fp16") {
  const NormedStep exact = first_step(ParityModel::kLlama, ParityLayout().on_one_rank());
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    const NormedStep step = first_step(ParityModel::kLlama, ParityLayout().on_one_rank(), precision, Device::kCpu);
    check_sum(step);
    for (size_t i = 0; i < exact.groups.size(); ++i) CHECK(step.groups[i].second == Approx(exact.groups[i].second).epsilon(0.05));
  }
}

/// Sets all weights of blocks.2 to `value`, and its moments to zero, which would change them. A block of zeros passes its input on and has no gradient:
/// every product in it has a factor zero.
void set_block(Trainer& trainer, float value) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    if (layer_group(owned.spec->name) != "blocks.2") continue;
    for (const auto& [name, tensor] : owned.kept()) std::fill_n(tensor.data<float>(), tensor.numel(), std::string(name) == "weight" ? value : 0);
  }
  trainer.weights_changed();
}

std::map<std::string, int64_t> zero_steps_of(Trainer& trainer) {
  std::map<std::string, int64_t> steps;
  for (const LayerGradient& layer : trainer.layer_gradients())
    if (layer.zero_steps > 0) steps[layer.layer] = layer.zero_steps;
  return steps;
}

/// Data that have no target while they are mute.
class Muted final : public Dataset {
 public:
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(sample, tokens, targets, segments);
    if (mute) std::fill_n(targets, 12, -1);
  }
  bool mute = false;

 private:
  RaggedDataset data_{29, 12, 61};
};

TEST_CASE("layer gradients: steps without a gradient are counted by layer, alike in every layout") {
  for (const char* const text : {"tp1pp1dp1z0", "tp2pp1dp2z1", "tp1pp2dp2z3", "dp4z2-rep2"}) {
    CAPTURE(text);
    ParityLayout layout;
    static_cast<Layout&>(layout) = parse_layout(text);
    const Config config = parity_config(ParityModel::kLlama, layout, "fp32");
    run_ranks(layout.world(), [&](Communicator& world) {
      Arena arena(Device::kCpu);
      Context ctx{Device::kCpu, &arena, 1};
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      Muted data;
      int64_t step = 0;
      const auto train = [&](int64_t steps) {
        while (steps-- > 0)
          if (trainer.step(data, step++, 1e-3).targets > 0) trainer.scalars().count_layer_gradients();
      };
      const auto expect = [&](const char* when, const std::map<std::string, int64_t>& expected) {
        TRIREME_CHECK(zero_steps_of(trainer) == expected, when, ", after step ", step);
      };
      train(3);
      expect("every layer learns", {});
      set_block(trainer, 0);
      train(4);
      expect("a block of zeros", {{"blocks.2", 4}});
      data.mute = true;
      train(2);
      expect("steps without a target do not count", {{"blocks.2", 4}});
      data.mute = false;
      train(1);
      expect("a block of zeros, again", {{"blocks.2", 5}});
      set_block(trainer, 0.1F);
      train(1);
      expect("the block learns again", {});
    });
  }
}

TEST_CASE("layer gradients: a layer without a gradient is one event and one warning until it learns again") {
  constexpr int kWindow = 8;
  ParityLayout layout;
  layout.data = 2;
  Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  config.observe.anomalies.window = kWindow;
  const RaggedDataset data(29, 12, 61);
  const Scratch scratch;
  config.run.directory = scratch / "";
  std::FILE* const terminal = std::fopen((scratch / "terminal").c_str(), "w");
  run_ranks(2, [&](Communicator& world) {
    Progress progress;
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    Reporter reporter;
    if (world.rank() == 0) reporter.open(config, {{"world_size", 2}, {"layout", {}}, {"version", "1"}}, std::nullopt, {}, 64, {}, terminal);
    RankFigures figures(trainer, progress);
    for (int64_t step = 1; step <= 5 * kWindow; ++step) {
      if (step == kWindow + 1 || step == 3 * kWindow + 1) set_block(trainer, 0);
      if (step == 3 * kWindow) set_block(trainer, 0.1F);
      trainer.step(data, step - 1, 1e-3);
      trainer.scalars().count_layer_gradients();
      figures.add_step(0.01);
      if (step % 4 == 3) figures.report(step, reporter);
    }
  });
  std::fclose(terminal);
  std::vector<std::pair<int64_t, int64_t>> dead;
  std::ifstream lines(scratch / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.value("event", "") != "dead_layer") continue;
    CHECK(event["layer"] == "blocks.2");
    dead.emplace_back(event["step"], event["zero_steps"]);
  }
  // Zero from step 9 on and again from step 25 on: after step 19 it was zero in 11 steps, after step 15 in 7; after step 35 in 11.
  CHECK(dead == std::vector<std::pair<int64_t, int64_t>>{{19, 11}, {35, 11}});
  std::ifstream file(scratch / "terminal");
  const std::string shown((std::istreambuf_iterator<char>(file)), {});
  CHECK_THAT(
      shown,
      Catch::Matchers::Contains(
          "step 19: warning: the gradient of blocks.2 has been zero in each of the last 11 steps, so nothing but weight decay changes its weights"));
}

}  // namespace
}  // namespace trireme::test
