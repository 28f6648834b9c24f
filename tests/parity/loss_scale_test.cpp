// fp16 with dynamic loss scaling: all ranks decide identically, a step is skipped or taken entirely, and the scale is part of the run's state.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/files/durable_file.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

Config fp16_config(ParityModel model, const ParityLayout& layout, const LossScaleConfig& loss_scale = {}) {
  Config config = parity_config(model, layout, "fp16");
  config.training.loss_scale = loss_scale;
  return config;
}

/// A second trainer on the ranks of the first.
struct Another {
  explicit Another(Trainer& first, const Config& config) : trainer(ctx, first.mesh().world, config, true) {}
  Arena arena{Device::kCpu, true};
  Context ctx{Device::kCpu, &arena, 1};
  Trainer trainer;
};

std::vector<float> state_of(const Trainer& trainer) {
  std::vector<float> state;
  for (const OwnedBox& owned : trainer.owned_boxes())
    for (const auto& [kind, tensor] : owned.kept()) state.insert(state.end(), tensor.data<float>(), tensor.data<float>() + tensor.numel());
  return state;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Sets every element of a row of the embedding.
void set_row(Trainer& trainer, int64_t token, float value) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    if (owned.spec->name != "embedding.weight") continue;
    const Box& box = owned.box;
    for (int64_t i = 0; i < box.numel(); ++i)
      if (box.start[0] + i / box.extent[1] == token) owned.weight.data<float>()[i] = value;
  }
  trainer.weights_changed();
}

bool all_finite(Trainer& trainer) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const float* const gradient = owned.gradient.data<float>();
    if (!std::all_of(gradient, gradient + owned.gradient.numel(), [](float value) { return std::isfinite(value); })) return false;
  }
  return true;
}

// RMSNorm divides by the RMS of its row. A row of zeros is divided by the root of epsilon, which is tiny here: the forward does not change, but the
// gradient of that row of the embedding, and of no other parameter, grows a million times.
constexpr double kHardlyAnyEpsilon = 1e-12;
constexpr int64_t kStep = 5;

/// A token that kStep reads, but never first in a sequence: a row of zeros that attends only to itself would still be zero after the first block.
int64_t zeroed_token(const Config& config) {
  const Sampler sampler(static_cast<uint64_t>(config.run.seed), kData.groups(), config.training.global_batch_size);
  std::set<int32_t> first, later;
  std::vector<int32_t> tokens(12), targets(12);
  std::vector<int64_t> segments;
  for (int64_t i = 0; i < config.training.global_batch_size; ++i) {
    kData.read(sampler.sample(kStep, i), tokens.data(), targets.data(), segments);
    first.insert(tokens[0]);
    later.insert(tokens.begin() + 1, tokens.begin() + 6);
  }
  return *std::find_if(later.begin(), later.end(), [&](int32_t token) { return !first.contains(token); });
}

}  // namespace

TEST_CASE("an overflow on one rank halves the loss scale on all ranks and has no other effect") {
  ParityLayout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.zero = 3;
  layout.sequence_parallel = true;
  Config config = fp16_config(ParityModel::kLlama, layout);
  config.model.norm_epsilon = kHardlyAnyEpsilon;
  on_ranks(config, [&](Trainer& disturbed) {
    Another another(disturbed, config);
    Trainer& undisturbed = another.trainer;
    for (Trainer* trainer : {&disturbed, &undisturbed}) {
      trainer->initialise();
      TRIREME_CHECK(trainer->step(kData, 0, 1e-3).accepted, "rejected");
      TRIREME_CHECK(trainer->scalars().loss_scale() == (LossScale{65536, 1}), "the first step was not clean");
    }
    set_row(disturbed, zeroed_token(config), 0);
    const std::vector<float> spoiled = state_of(disturbed);
    int64_t scale = 65536;
    for (StepResult result = disturbed.step(kData, kStep, 1e-3);; result = disturbed.step(kData, kStep, 1e-3)) {
      TRIREME_CHECK(result.loss_scale == scale && std::isfinite(result.loss), "scale ", *result.loss_scale, ", loss ", result.loss);
      if (result.accepted) break;
      const double overflown = all_reduce_scalar(disturbed.mesh().world, all_finite(disturbed) ? 0 : 1, ReduceOp::kSum);
      TRIREME_CHECK(overflown == 1, overflown, " ranks own gradients that overflow");
      TRIREME_CHECK(result.overflow && result.offender == "embedding.weight", result.offender);
      TRIREME_CHECK(same_bits(state_of(disturbed), spoiled), "the rejected step changed the state");
      scale /= 2;
      TRIREME_CHECK(disturbed.scalars().loss_scale() == (LossScale{scale, 0}), "the scale is ", disturbed.scalars().loss_scale().scale);
    }
    TRIREME_CHECK(scale < 65536 && scale > 1, "accepted with a scale of ", scale);
    TRIREME_CHECK(disturbed.scalars().accepted_steps() == 2, disturbed.scalars().accepted_steps(), " accepted steps");

    // Reference without the overflow: the same weights, and the scale that was found.
    set_row(undisturbed, zeroed_token(config), 0);
    undisturbed.scalars().set_loss_scale({scale, 0});
    undisturbed.step(kData, kStep, 1e-3);
    TRIREME_CHECK(same_bits(state_of(disturbed), state_of(undisturbed)), "the step after it differs");
    TRIREME_CHECK(disturbed.scalars().loss_scale() == undisturbed.scalars().loss_scale(), "the count of clean steps differs");
  });
}

TEST_CASE("the loss scale grows, falls and stays within its bounds over steps") {
  const auto scales_of = [](const LossScaleConfig& loss_scale, int steps, bool overflow) {
    Config config = fp16_config(ParityModel::kLlama, {}, loss_scale);
    config.model.norm_epsilon = kHardlyAnyEpsilon;
    std::vector<int64_t> scales;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      if (overflow) set_row(trainer, zeroed_token(config), 0);
      for (int step = 0; step < steps; ++step) {
        const StepResult result = trainer.step(kData, kStep, 1e-3);
        TRIREME_CHECK(result.accepted == !overflow, "step ", step);
        // At the minimum scale it is not reported as an expected overflow: the user must be warned.
        TRIREME_CHECK(result.overflow == (overflow && result.loss_scale != loss_scale.minimum), "step ", step);
        scales.push_back(*result.loss_scale);
      }
    });
    return scales;
  };
  using Scales = std::vector<int64_t>;
  CHECK(scales_of({.initial = 4, .maximum = 16, .growth_interval = 3}, 11, false) == Scales{4, 4, 4, 8, 8, 8, 16, 16, 16, 16, 16});
  CHECK(scales_of({.initial = 1 << 20, .minimum = 1 << 17, .growth_interval = 3}, 6, true) ==
        Scales{1 << 20, 1 << 19, 1 << 18, 1 << 17, 1 << 17, 1 << 17});
}

TEST_CASE("a non-finite loss does not count as a loss-scale overflow") {
  const Config config = fp16_config(ParityModel::kLlama, {});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    set_row(trainer, zeroed_token(config), std::numeric_limits<float>::quiet_NaN());
    const StepResult result = trainer.step(kData, kStep, 1e-3);
    TRIREME_CHECK(!result.accepted && !result.overflow, "treated as an overflow");
    TRIREME_CHECK(trainer.scalars().loss_scale() == (LossScale{32768, 0}), "scale ", trainer.scalars().loss_scale().scale);
  });
}

TEST_CASE("with fp32 sums a loss scale, a power of two, leaves a step bit-identical") {
  for (const double clip : {0.5, 0.0}) {
    Config config = parity_config(ParityModel::kGpt2, {}, "fp32");
    config.training.gradient_clip = clip;
    on_ranks(config, [&](Trainer& plain) {
      Another another(plain, config);
      Trainer& scaled = another.trainer;
      scaled.scalars().set_loss_scale({1 << 12, 0});
      std::vector<StepResult> results;
      for (Trainer* trainer : {&plain, &scaled}) {
        trainer->initialise();
        results.push_back(trainer->step(kData, 0, 1e-3));
      }
      TRIREME_CHECK(results[0].grad_norm == results[1].grad_norm && results[0].grad_norm > 0.5, results[0].grad_norm, " and ", results[1].grad_norm);
      TRIREME_CHECK(same_bits(state_of(plain), state_of(scaled)), "the steps differ");
    });
  }
}

/// As in bf16 (parity_test.cpp), with 8 times its precision, for every `stride`-th of the pairs of options. What rounding to fp16 costs depends on the
/// model: the plain loops of the reference, with sums in double, say how much, and one rank of any instruction level may lose little more.
static void check_gradients_in_fp16(size_t stride) {
  const auto one_rank = [](const Config& config, Device device) { return train_on_threads(config, 1, device); };
  std::map<std::string, std::array<RunRecord, 3>> serial;
  const std::vector<ParityCase> cases = covering_parity_cases(2);
  for (size_t i = 0; i < cases.size(); i += stride) {
    ParityCase c = cases[i];
    c.layout.islands = 1;                           // islands with a loss scale each are refused
    if (c.model == ParityModel::kGemma3) continue;  // its rounding in fp16, up to 0.067 in the plain loops too, needs bounds of its own
    INFO(name_of(c.model) << " " << c.layout.str());
    auto& [exact, plain, one] = serial[name_of(c.model) + c.layout.on_one_rank().str()];
    if (exact.loss.empty()) {
      exact = one_rank(parity_config(c.model, c.layout.on_one_rank(), "fp64"), Device::kReference);
      plain = one_rank(fp16_config(c.model, c.layout.on_one_rank()), Device::kReference);
      one = one_rank(fp16_config(c.model, c.layout.on_one_rank()), Device::kCpu);
    }
    const RunRecord record = train_on_threads(fp16_config(c.model, c.layout), 1, Device::kCpu, true);
    const GradientErrors rounding = gradient_errors(exact, plain), unit = gradient_errors(exact, one), errors = gradient_errors(exact, record);
    CHECK(rounding.worst < 0.3 / 8);
    CHECK(unit.worst < 1.5 * rounding.worst);
    CHECK(unit.mean < 1.1 * rounding.mean);
    CHECK(errors.mean < 2 * unit.mean);
    CHECK(errors.worst < 0.5 / 8);
    CHECK(std::abs(record.loss[0] - exact.loss[0]) < 1e-2 / 8 * exact.loss[0]);
    CHECK(std::abs(record.grad_norm[0] - exact.grad_norm[0]) < 0.1 / 8 * exact.grad_norm[0]);
  }
}

TEST_CASE("in fp16 an eighth of the pairs is as close to the exact gradient as one rank") { check_gradients_in_fp16(8); }

TEST_CASE("in fp16 half of the pairs is as close to the exact gradient as one rank", "[slow]") { check_gradients_in_fp16(2); }

TEST_CASE("loss scaling keeps small gradients from vanishing") {
  // Small weights: each product scales the gradient down a thousandfold, soon below 2^-24.
  const auto of_small_weights = [](Config config) {
    config.model.init_std = 1e-3;
    config.model.norm_epsilon = 1;  // otherwise the norms would compensate
    return config;
  };
  const RunRecord exact = train_on_threads(of_small_weights(parity_config(ParityModel::kLlama, {}, "fp64")), 1, Device::kReference);
  const auto error_with = [&](const LossScaleConfig& loss_scale) {
    return gradient_error(exact, train_on_threads(of_small_weights(fp16_config(ParityModel::kLlama, {}, loss_scale)), 1, Device::kCpu));
  };
  CHECK(error_with({}) < 0.1 / 8);
  CHECK(error_with({.initial = 1, .maximum = 1}) > 0.1);
}

TEST_CASE("fp16 training follows fp32") {
  constexpr double kTolerance = 1e-2 / 8;  // relative, as above; ten steps do not accumulate more
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout}) {
    INFO(name_of(model));
    const RunRecord wide = train_on_threads(parity_config(model, {}, "fp32"), 10, Device::kCpu);
    const RunRecord narrow = train_on_threads(fp16_config(model, {}), 10, Device::kCpu);
    for (size_t step = 0; step < wide.loss.size(); ++step) {
      INFO("step " << step + 1);
      CHECK(std::abs(narrow.loss[step] - wide.loss[step]) < kTolerance * wide.loss[step]);
    }
    CHECK(std::abs(narrow.validation_loss - wide.validation_loss) < kTolerance * wide.validation_loss);
  }
}

TEST_CASE("a resume in fp16 continues bit for bit in the same layout, and restores the loss scale in another") {
  constexpr int kSteps = 20, kPart = 5;
  // Such a large scale overflows at once, and again whenever it has grown back.
  const LossScaleConfig loss_scale{.initial = 1 << 28, .maximum = 1 << 28, .growth_interval = 3};
  ParityLayout from, to;
  from.tensor = from.pipeline = from.data = 2;
  from.zero = 3;
  to.tensor = 3;
  to.data = 2;
  to.zero = 1;
  const Config config = fp16_config(ParityModel::kLlama, from, loss_scale);
  struct Step {
    StepResult result;
    LossScale after;
  };
  const auto take = [](Trainer& trainer, int step) {
    const StepResult result = trainer.step(kData, step, 3e-3);
    return Step{result, trainer.scalars().loss_scale()};
  };
  const TemporaryDirectory directory;
  std::vector<Step> through;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    int rejected = 0, grown = 0;
    std::vector<Step> steps;
    for (int step = 0; step < kSteps; ++step) {
      steps.push_back(take(trainer, step));
      rejected += !steps.back().result.accepted;
      grown += steps.back().after.scale > *steps.back().result.loss_scale;
    }
    TRIREME_CHECK(rejected > 4 && grown > 1, rejected, " steps rejected, grown ", grown, " times");
    if (trainer.mesh().world.rank() == 0) through = steps;
    for (int first = 0; first < kSteps; first += kPart) {
      Another another(trainer, config);
      Trainer& part = another.trainer;
      if (first == 0) {
        part.initialise();
      } else {
        CheckpointReader reader(directory.path / checkpoint_name(first));
        load_state(part, reader);
      }
      for (int step = first; step < first + kPart; ++step) {
        const Step again = take(part, step), &before = steps[static_cast<size_t>(step)];
        TRIREME_CHECK(again.result.loss == before.result.loss && again.after == before.after, "step ", step, " differs after a resume");
        TRIREME_CHECK(
            again.result.accepted == before.result.accepted && (!again.result.accepted || again.result.grad_norm == before.result.grad_norm), "step ",
            step, " differs after a resume");
      }
      save(part, directory.path, first + kPart);
      if (first + kPart == kSteps) TRIREME_CHECK(same_bits(state_of(trainer), state_of(part)), "the resumed run ends in a different state");
    }
  });
  for (int first = kPart; first < kSteps; first += kPart) {
    const std::filesystem::path checkpoint = directory.path / checkpoint_name(first);
    GatheredState loaded;
    on_ranks(fp16_config(ParityModel::kLlama, to, loss_scale), [&](Trainer& trainer) {
      CheckpointReader reader(checkpoint);
      load_state(trainer, reader);
      loaded.add(trainer);
      TRIREME_CHECK(trainer.scalars().loss_scale() == through[static_cast<size_t>(first - 1)].after, "after step ", first,
                    ": a different scale was loaded");
      for (int step = first; step < first + kPart; ++step) {
        const Step again = take(trainer, step), &before = through[static_cast<size_t>(step)];
        TRIREME_CHECK(std::abs(again.result.loss - before.result.loss) < 1e-2 * before.result.loss, "step ", step, ": a different loss");
      }
    });
    CHECK(loaded.whole() == read_whole(checkpoint));
  }
}

TEST_CASE("the loss scale grows after the same number of clean steps with and without a resume") {
  constexpr int kSteps = 8;
  const LossScaleConfig loss_scale{.initial = 4, .maximum = 64, .growth_interval = 3};  // small: nothing overflows in any layout
  ParityLayout split;
  split.tensor = split.data = 2;
  split.zero = 2;
  const TemporaryDirectory directory;
  std::vector<LossScale> through;
  on_ranks(fp16_config(ParityModel::kLlama, {}, loss_scale), [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < kSteps; ++step) {
      TRIREME_CHECK(trainer.step(kData, step, 1e-3).accepted, "step ", step);
      through.push_back(trainer.scalars().loss_scale());
      save(trainer, directory.path, step + 1);
    }
  });
  CHECK(through.back() == LossScale{16, 2});
  for (const ParityLayout& layout : {ParityLayout{}, split}) {
    for (int first = 1; first < kSteps; ++first) {  // resumes at every count of clean steps, at least twice
      on_ranks(fp16_config(ParityModel::kLlama, layout, loss_scale), [&](Trainer& trainer) {
        CheckpointReader reader(directory.path / checkpoint_name(first));
        load_state(trainer, reader);
        TRIREME_CHECK(trainer.scalars().loss_scale() == through[static_cast<size_t>(first - 1)], "loaded after step ", first);
        for (int step = first; step < kSteps; ++step) {
          trainer.step(kData, step, 1e-3);
          const LossScale found = trainer.scalars().loss_scale(), expected = through[static_cast<size_t>(step)];
          TRIREME_CHECK(found == expected, "resumed after step ", first, ": after step ", step + 1, " the scale is ", found.scale, " with ",
                        found.clean_steps, " clean steps, not ", expected.scale, " with ", expected.clean_steps);
        }
      });
    }
  }
}

TEST_CASE("fp16 state is fp32 state plus a loss scale: other precisions load it, and fp16 refuses a state without one") {
  const TemporaryDirectory directory;
  const auto config_of = [](const char* precision) { return parity_config(ParityModel::kGpt2, {}, precision); };
  std::vector<float> state;
  const auto saved = [&](const char* precision, int64_t step) {
    on_ranks(config_of(precision), [&](Trainer& trainer) {
      trainer.initialise();
      trainer.step(kData, 0, 1e-3);
      state = state_of(trainer);
      save(trainer, directory.path, step);
    });
  };
  saved("fp16", 1);
  for (const char* precision : {"fp32", "bf16"}) {
    on_ranks(config_of(precision), [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(1));
      load_state(trainer, reader);
      TRIREME_CHECK(same_bits(state_of(trainer), state) && trainer.scalars().loss_scale() == LossScale{}, precision);
      TRIREME_CHECK(trainer.step(kData, 1, 1e-3).accepted && trainer.scalars().loss_scale() == LossScale{}, precision);
    });
  }
  saved("bf16", 2);
  CHECK(read_text(directory.path / checkpoint_name(2) / kManifestName).find("loss_scale") == std::string::npos);
  CHECK_THROWS_WITH(on_ranks(config_of("fp16"),
                             [&](Trainer& trainer) {
                               CheckpointReader reader(directory.path / checkpoint_name(2));
                               load_state(trainer, reader);
                             }),
                    Catch::Matchers::Contains("contains no loss scale"));
}

}  // namespace trireme::test
