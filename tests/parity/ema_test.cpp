// The moving average of the weights: follows the master weights after each accepted step, under all shardings, and is part of the run's state.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/parity/layouts.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);
constexpr double kDecay = 0.25;  // the first four steps are in the warm-up, at 1/10, 2/11, 3/12 and 4/13

Config config_of(ParityModel model, const ParityLayout& layout, const std::string& precision = "fp64", std::optional<double> decay = kDecay) {
  Config config = parity_config(model, layout, precision);
  config.training.ema.decay = decay;
  return config;
}

double decay_after(int64_t accepted_before) {
  const auto t = static_cast<double>(accepted_before);
  return std::min(kDecay, (1 + t) / (10 + t));
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  dispatch_float(tensor.dtype(), [&](auto zero) {
    const auto* const from = tensor.data<decltype(zero)>();
    values.assign(from, from + tensor.numel());
  });
  return values;
}

/// The values of `kind` ("weight": master weights) on this rank, box after box.
std::vector<double> owned_of(const Trainer& trainer, const std::string& kind) {
  std::vector<double> all;
  for (const OwnedBox& owned : trainer.owned_boxes())
    for (const auto& [name, tensor] : owned.kept())
      if (name == kind) {
        const std::vector<double> values = values_of(tensor);
        all.insert(all.end(), values.begin(), values.end());
      }
  return all;
}

void follow(std::vector<double>& average, const Trainer& trainer, double decay) {
  const std::vector<double> weights = owned_of(trainer, "weight");
  TRIREME_CHECK(weights.size() == average.size(), weights.size(), " weights");
  for (size_t i = 0; i < weights.size(); ++i) average[i] = decay * average[i] + (1 - decay) * weights[i];
}

void expect_average(const Trainer& trainer, const std::vector<double>& expected, double tolerance, const std::string& when) {
  const std::vector<double> actual = owned_of(trainer, "ema");
  TRIREME_CHECK(actual.size() == expected.size(), actual.size(), " elements of ", expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    TRIREME_CHECK(std::abs(actual[i] - expected[i]) <= tolerance, when, ", element ", i, ": ", expected[i], " expected, got ", actual[i]);
}

/// All kinds of shards: ZeRO 0 to 3, hybrid, pipelines with a tied embedding, both copies of it on one rank, and every optimizer.
std::vector<ParityCase> some_layouts() {
  std::vector<ParityCase> cases = {
      {ParityModel::kGpt2, {}},
      {ParityModel::kLlamaGrouped, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}},
      {ParityModel::kGpt2Dropout, {{.data = 3, .zero = 1}}},
      {ParityModel::kLlama, {{.pipeline = 2, .data = 4, .zero = 2, .replicate = 2}}},
      {ParityModel::kGpt2, {{.pipeline = 2, .data = 2, .zero = 0, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}}};
  cases[2].layout.optimizer = Optimizer::kLion;
  return cases;
}

}  // namespace

TEST_CASE("moving average: follows the weights of each step, starting from the initial ones") {
  for (const auto& [model, layout] : some_layouts())
    for (const auto& [precision, tolerance] : {std::pair{"fp64", 1e-14}, std::pair{"fp32", 1e-6}, std::pair{"bf16", 1e-6}}) {
      INFO(name_of(model) << " " << layout.str() << " " << precision);
      const Config config = config_of(model, layout, precision);
      on_ranks(config, [&, tolerance = tolerance](Trainer& trainer) {
        trainer.initialise();
        std::vector<double> average = owned_of(trainer, "weight");
        expect_average(trainer, average, 0, "at the start");
        for (int step = 0; step < 6; ++step) {
          trainer.step(kData, step, 3e-3);
          follow(average, trainer, decay_after(step));
          expect_average(trainer, average, tolerance, concat("after step ", step + 1));
        }
        for (const auto& stage : trainer.stages())  // the padding after the last parameter of a unit
          for (size_t u = 0; u < stage->params().units().size(); ++u) {
            const std::vector<double> shard = values_of(stage->optimizer()->state(static_cast<int>(u)).back().shard);
            int64_t filled = 0;
            for (const Unit::Segment& segment : stage->params().units()[u]->owned_segments()) filled += segment.count;
            for (size_t i = static_cast<size_t>(filled); i < shard.size(); ++i) TRIREME_CHECK(shard[i] == 0, "padding contains ", shard[i]);
          }
      });
    }
}

TEST_CASE("moving average: enabling it leaves training bit-identical") {
  for (const auto& [model, layout] : some_layouts()) {
    const Config config = config_of(model, layout, "fp32"), plain = config_of(model, layout, "fp32", std::nullopt);
    RunRecord with = train_on_threads(config, 4, Device::kCpu);
    const RunRecord without = train_on_threads(plain, 4, Device::kCpu);
    CHECK(without.average.empty());
    CHECK(with.average.size() == with.weight.size());
    with.average.clear();
    CHECK(with == without);
  }
}

TEST_CASE("moving average: Lion and AdamW give the same average in every layout of data and pipeline ranks") {
  for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kLion}) {
    ParityLayout one;
    one.optimizer = optimizer;
    const RunRecord expected = train_on_threads(config_of(ParityModel::kLlamaGrouped, one), 4, Device::kReference);
    for (const auto& [unused, of] : some_layouts()) {
      ParityLayout layout = of;
      layout.optimizer = optimizer;
      if (!is_legal(ParityModel::kLlamaGrouped, layout)) continue;
      INFO(layout.str());
      CHECK(difference(expected, train_on_threads(config_of(ParityModel::kLlamaGrouped, layout), 4, Device::kReference, true), 1e-10) == "");
    }
  }
}

TEST_CASE("moving average: in bf16 it follows master weights that change by less than bf16 resolves") {
  const Config config = config_of(ParityModel::kLlama, {{.data = 2, .zero = 2}}, "bf16");
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const std::vector<double> initial = owned_of(trainer, "weight");
    std::vector<double> average = initial;
    for (int step = 0; step < 4; ++step) {
      trainer.step(kData, step, 1e-6);
      follow(average, trainer, decay_after(step));
    }
    const std::vector<double> ema = owned_of(trainer, "ema");
    size_t moved = 0, held = 0, large = 0;
    for (size_t i = 0; i < ema.size(); ++i) {
      if (std::abs(initial[i]) < 0.05) continue;
      ++large;
      moved += ema[i] != initial[i];
      held += static_cast<float>(bfloat16(static_cast<float>(ema[i]))) == static_cast<float>(bfloat16(static_cast<float>(initial[i])));
    }
    TRIREME_CHECK(moved > large * 9 / 10 && held > large * 9 / 10, moved, " of ", large, " moved, ", held, " unchanged in bf16");
    expect_average(trainer, average, 1e-7, "after steps of 1e-6");
  });
}

TEST_CASE("moving average: a rejected fp16 step does not change it, and its warm-up counts only accepted steps") {
  Config config = config_of(ParityModel::kLlama, {{.tensor = 2, .data = 2, .zero = 3}}, "fp16");
  config.training.loss_scale = {.initial = 1 << 24, .minimum = 1, .maximum = 1 << 24, .growth_interval = 1000};
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    std::vector<double> average = owned_of(trainer, "weight");
    int accepted = 0, rejected = 0;
    for (int step = 0; accepted < 5; ++step) {
      const std::vector<double> before = owned_of(trainer, "ema");
      if (trainer.step(kData, step, 3e-3).accepted) {
        follow(average, trainer, decay_after(accepted++));
        expect_average(trainer, average, 1e-6, concat("after step ", step + 1));
      } else {
        ++rejected;
        TRIREME_CHECK(owned_of(trainer, "ema") == before, "a rejected step moved the average");
      }
    }
    TRIREME_CHECK(rejected > 2, "too few steps were rejected");
  });
}

TEST_CASE("moving average: a resume restores it bit for bit, in the same layout and any other") {
  for (const auto& [model, layout] : some_layouts()) {
    INFO(name_of(model) << " " << layout.str());
    const TemporaryDirectory directory;
    const Config config = config_of(model, layout);
    GatheredState through, parts;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      for (int step = 0; step < 3; ++step) trainer.step(kData, step, 3e-3);
      save(trainer, directory.path, 3);
      for (int step = 3; step < 6; ++step) trainer.step(kData, step, 3e-3);
      through.add(trainer);
      Arena arena(Device::kReference, true);
      Context ctx{Device::kReference, &arena, 1};
      Trainer part(ctx, trainer.mesh().world, config, true);
      CheckpointReader reader(directory.path / checkpoint_name(3));
      load_state(part, reader);
      for (int step = 3; step < 6; ++step) part.step(kData, step, 3e-3);
      parts.add(part);
    });
    CHECK(parts.whole() == through.whole());
    CHECK(through.whole().contains("ema/embedding.weight"));
    for (const auto& [unused, other] : some_layouts()) {
      if (!is_legal(model, other)) continue;
      ParityLayout to = other;
      to.optimizer = layout.optimizer;
      GatheredState loaded;
      on_ranks(config_of(model, to), [&](Trainer& trainer) {
        CheckpointReader reader(directory.path / checkpoint_name(3));
        load_state(trainer, reader);
        loaded.add(trainer);
        std::vector<double> average = owned_of(trainer, "ema");
        trainer.step(kData, 3, 3e-3);
        follow(average, trainer, decay_after(3));
        expect_average(trainer, average, 1e-14, "after " + to.str());
      });
      CHECK(loaded.whole() == read_whole(directory.path / checkpoint_name(3)));
    }
  }
}

TEST_CASE("moving average: enabled at a resume it starts from the checkpoint's weights, disabled it is dropped") {
  const ParityLayout layout{{.pipeline = 2, .data = 2, .zero = 3}};
  const Config on = config_of(ParityModel::kGpt2, layout), off = config_of(ParityModel::kGpt2, layout, "fp64", std::nullopt);
  const TemporaryDirectory directory;
  const auto holds_average = [&](int step) { return CheckpointReader(directory.path / checkpoint_name(step)).has_kind(kAverageName); };
  const auto resume = [&](const Config& config, int from) {
    on_ranks(config, [&](Trainer& trainer) {
      if (from == 0) {
        trainer.initialise();
      } else {
        CheckpointReader reader(directory.path / checkpoint_name(from));
        load_state(trainer, reader);
      }
      const bool kept = config.training.ema.decay.has_value();
      std::vector<double> average = owned_of(trainer, "weight");
      if (kept) expect_average(trainer, average, 0, "when it is enabled");
      for (int step = from; step < from + 2; ++step) {
        trainer.step(kData, step, 3e-3);
        follow(average, trainer, decay_after(step));  // accepted steps of the run, not those since it was enabled
      }
      if (kept) expect_average(trainer, average, 1e-14, "after two more steps");
      save(trainer, directory.path, from + 2);
    });
  };
  resume(off, 0);
  CHECK(!holds_average(2));
  resume(on, 2);
  CHECK(holds_average(4));
  resume(off, 4);
  CHECK(!holds_average(6));
  GatheredState through, parts;
  on_ranks(off, [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 6; ++step) trainer.step(kData, step, 3e-3);
    through.add(trainer);
    CheckpointReader reader(directory.path / checkpoint_name(6));
    load_state(trainer, reader);
    parts.add(trainer);
  });
  CHECK(parts.whole() == through.whole());
}

TEST_CASE("moving average: it restarts from loaded weights, and can be loaded instead of the weights") {
  const TemporaryDirectory directory;
  const Config config = config_of(ParityModel::kLlama, {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 3; ++step) trainer.step(kData, step, 3e-3);
    save(trainer, directory.path, 3);
    const std::vector<double> weights = owned_of(trainer, "weight"), average = owned_of(trainer, "ema");
    TRIREME_CHECK(weights != average, "the average equals the weights");
    for (const WeightKind kind : {WeightKind::kTrained, WeightKind::kAverage}) {
      WeightSource source(directory.path / checkpoint_name(3), kind);
      load_weights(trainer, source);
      TRIREME_CHECK(owned_of(trainer, "weight") == (kind == WeightKind::kTrained ? weights : average), "wrong values were loaded");
      TRIREME_CHECK(owned_of(trainer, "ema") == owned_of(trainer, "weight"), "the average does not start from the loaded weights");
    }
  });
}

}  // namespace trireme::test
