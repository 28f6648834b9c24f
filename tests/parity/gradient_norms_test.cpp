// The norm of the gradient by group of parameters is that of one rank in every layout, and its squares add up to the global norm's.
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

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
    const GroupNorms groups = trainer.gradient_norms();
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

}  // namespace
}  // namespace trireme::test
