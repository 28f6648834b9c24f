// Runs that sum in the same order are bit-identical: schedules with the same stages on the same ranks, buckets, recomputation, and resumed runs.
#include <fstream>

#include "parallel/pipeline/schedule.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"

namespace trireme::test {
namespace {

constexpr int kSteps = 3;

struct Kind {
  ScheduleKind schedule;
  int virtual_stages;
};

struct Sharding {
  int zero;
  GradientAccumulation accumulation;
};
/// Every lifetime of gradients and parameters.
constexpr Sharding kShardings[] = {{0, GradientAccumulation::kAuto},    {1, GradientAccumulation::kAuto}, {2, GradientAccumulation::kFull},
                                   {2, GradientAccumulation::kSharded}, {3, GradientAccumulation::kFull}, {3, GradientAccumulation::kSharded}};

ParityLayout with(ParityLayout layout, const Kind& kind) {
  layout.schedule = kind.schedule;
  layout.virtual_stages = kind.virtual_stages;
  return layout;
}

ParityLayout with(ParityLayout layout, const Sharding& sharding) {
  layout.zero = sharding.zero;
  layout.gradient_accumulation = sharding.accumulation;
  return layout;
}

Device device_of(const OneOf<Arithmetic>& precision) { return precision == Arithmetic::kFp64 ? Device::kReference : Device::kCpu; }

RunRecord run(const Config& config) { return train_on_threads(config, kSteps, device_of(config.training.precision), true); }

/// GPipe with several stages per rank: on each rank all forwards stage by stage, then all backwards, the last stage first.
ActionLists all_forwards_first(const std::vector<int>& stage_rank, int ranks, int microbatches) {
  ActionLists plan(static_cast<size_t>(ranks));
  const int stages = static_cast<int>(stage_rank.size());
  for (int s = 0; s < stages; ++s)
    for (int m = 0; m < microbatches; ++m) plan[static_cast<size_t>(stage_rank[static_cast<size_t>(s)])].push_back({ActionType::kForward, s, m});
  for (int s = stages - 1; s >= 0; --s)
    for (int m = 0; m < microbatches; ++m) plan[static_cast<size_t>(stage_rank[static_cast<size_t>(s)])].push_back({ActionType::kBackward, s, m});
  return plan;
}

/// The same configuration with that schedule, read from a file, for the same stages on the same ranks.
Config from_file(Config config, const std::filesystem::path& path) {
  const std::vector<int> stage_rank = stage_ranks(training_schedule(config));
  std::ofstream(path) << to_text(all_forwards_first(stage_rank, static_cast<int>(config.parallel.pipeline), microbatches_of(config)));
  config.parallel.schedule = "file";
  config.parallel.schedule_file = path.string();
  return config;
}

}  // namespace

TEST_CASE("gpipe, 1f1b and the zero-bubble schedules are bit-identical under every sharding and accumulation") {
  ParityLayout layout;
  layout.pipeline = 3;
  layout.data = 2;
  for (const Sharding& sharding : kShardings) {
    const ParityModel model = sharding.zero % 2 == 0 ? ParityModel::kGpt2Dropout : ParityModel::kLlamaGrouped;
    const RunRecord expected = run(parity_config(model, with(with(layout, sharding), {ScheduleKind::kGPipe, 1}), "fp64"));
    for (const Kind& kind : {Kind{ScheduleKind::k1F1B, 1}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbH2, 1}, {ScheduleKind::kInterleaved1F1B, 1}}) {
      const ParityLayout other = with(with(layout, sharding), kind);
      INFO(name_of(model) << " " << other.str());
      CHECK(run(parity_config(model, other, "fp64")) == expected);
    }
  }
}

TEST_CASE("schedules are bit-identical with tensor parallelism, on the CPU kernels, in fp32 and bf16") {
  const ParityLayout layout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}};
  for (const char* precision : {"fp32", "bf16"}) {
    const ParityModel model = ParityModel::kGpt2Dropout;
    const RunRecord expected = run(parity_config(model, with(layout, {ScheduleKind::kGPipe, 1}), precision));
    for (const Kind& kind : {Kind{ScheduleKind::k1F1B, 1}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbH2, 1}}) {
      INFO(precision << " " << name_of(kind.schedule));
      CHECK(run(parity_config(model, with(layout, kind), precision)) == expected);
    }
  }
}

TEST_CASE("interleaved and V schedules are bit-identical to all forwards first with the same stages on the same ranks") {
  const TemporaryDirectory files;
  for (const Kind& kind : {Kind{ScheduleKind::kInterleaved1F1B, 2}, {ScheduleKind::kZbV, 2}}) {
    for (const Sharding& sharding : kShardings) {
      const ParityLayout layout = with(with(ParityLayout{{.pipeline = 2, .data = 2}}, sharding), kind);
      INFO(layout.str());
      const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
      CHECK(run(config) == run(from_file(config, files.path / "schedule.txt")));
    }
  }
  // Three stages per rank, and 4 micro-batches, which is not a multiple of 3 ranks.
  const ParityLayout layout =
      ParityLayout{{.pipeline = 3, .micro_batch = 3, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 3}}.with_layers(13);
  const Config config = parity_config(ParityModel::kGpt2Dropout, layout, "fp64");
  CHECK(run(config) == run(from_file(config, files.path / "schedule.txt")));
}

TEST_CASE("stages without layers: all schedules of the same stages are bit-identical, and train what one rank trains, one from a file among them") {
  const TemporaryDirectory files;
  for (const Sharding& sharding : kShardings) {
    const ParityModel model = sharding.zero % 2 == 0 ? ParityModel::kGpt2Dropout : ParityModel::kLlama;
    const RunRecord one = run(parity_config(model, {}, "fp64"));
    const ParityLayout layout = with(ParityLayout{{.pipeline = 3, .data = 2}}.with_layers(5, {0, 5, 0}), sharding);
    const Config gpipe = parity_config(model, with(layout, {ScheduleKind::kGPipe, 1}), "fp64");
    const RunRecord expected = run(gpipe);
    CHECK(difference(one, expected, 1e-10) == "");
    CHECK(run(from_file(gpipe, files.path / "schedule.txt")) == expected);
    for (const Kind& kind : {Kind{ScheduleKind::k1F1B, 1}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbH2, 1}, {ScheduleKind::kInterleaved1F1B, 1}}) {
      const ParityLayout other = with(layout, kind);
      INFO(name_of(model) << " " << other.str());
      CHECK(run(parity_config(model, other, "fp64")) == expected);
    }
    for (const Kind& kind : {Kind{ScheduleKind::kInterleaved1F1B, 2}, {ScheduleKind::kZbV, 2}}) {
      const ParityLayout other = with(with(ParityLayout{{.pipeline = 2, .data = 2}}.with_layers(5, {0, 2, 3, 0}), sharding), kind);
      INFO(name_of(model) << " " << other.str());
      const Config config = parity_config(model, other, "fp64");
      const RunRecord from_list = run(from_file(config, files.path / "schedule.txt"));
      CHECK(difference(one, from_list, 1e-10) == "");
      const RunRecord actual = run(config);
      CHECK(difference(one, actual, 1e-10) == "");
      // The order in which a V adds to a tied embedding depends on the schedule.
      if (model == ParityModel::kLlama || kind.schedule != ScheduleKind::kZbV) CHECK(actual == from_list);
    }
  }
}

TEST_CASE("a tied embedding shared by first and last stage of a V schedule differs only by the order of its sum") {
  // Its gradient sums those of head and embedding over the micro-batches; the schedule determines their order.
  const TemporaryDirectory files;
  const ParityLayout layout{{.pipeline = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}};
  const Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
  const RunRecord actual = train_on_threads(config, 1, Device::kReference, true);
  RunRecord expected = train_on_threads(from_file(config, files.path / "schedule.txt"), 1, Device::kReference, true);
  CHECK(difference(expected, actual, 1e-12) == "");
  CHECK(actual.loss == expected.loss);
  size_t others = 0;
  for (const auto& [name, gradient] : expected.first_gradient) {
    if (name == "embedding.weight") continue;
    INFO(name);
    CHECK(actual.first_gradient.at(name).values == gradient.values);
    ++others;
  }
  CHECK(others + 1 == actual.first_gradient.size());
}

TEST_CASE("recomputation is bit-identical under every schedule") {
  for (const Kind& kind : {Kind{ScheduleKind::k1F1B, 1}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kInterleaved1F1B, 2}, {ScheduleKind::kZbV, 2}}) {
    ParityLayout layout = with(ParityLayout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}}, kind);
    const RunRecord expected = run(parity_config(ParityModel::kGpt2Dropout, layout, "fp64"));
    for (const auto& [mode, every] : {std::pair{RecomputeMode::kSelective, 1}, {RecomputeMode::kFull, 1}, {RecomputeMode::kFull, 2}}) {
      layout.recompute = mode;
      layout.recompute_every = every;
      INFO(layout.str());
      CHECK(run(parity_config(ParityModel::kGpt2Dropout, layout, "fp64")) == expected);
    }
  }
}

TEST_CASE("buckets are bit-identical except for the gradient norm") {
  // Each element's sum over ranks is unchanged, but the elements of a shard, and with them the order of the norm's sum, are not. Without clipping the
  // norm has no effect.
  for (const auto& [zero, accumulation] : {kShardings[1], kShardings[3], kShardings[5]}) {
    for (const Kind& kind : {Kind{ScheduleKind::k1F1B, 1}, {ScheduleKind::kInterleaved1F1B, 2}}) {
      ParityLayout layout = with(with(ParityLayout{{.pipeline = 2, .data = 3}}, kind), {zero, accumulation});
      const auto unclipped = [&](int bucket) {
        layout.bucket_blocks = bucket;
        Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
        config.training.gradient_clip = 0;
        return run(config);
      };
      RunRecord expected = unclipped(1);
      for (const int bucket : {2, 5}) {
        INFO(layout.str() << " bucket " << bucket);
        const RunRecord actual = unclipped(bucket);
        CHECK(difference(expected, actual, 1e-13) == "");
        expected.grad_norm = actual.grad_norm;
        CHECK(actual == expected);
      }
    }
  }
}

TEST_CASE("a resumed run with several stages per rank is bit-identical to an uninterrupted one") {
  for (const Kind& kind : {Kind{ScheduleKind::kInterleaved1F1B, 2}, {ScheduleKind::kZbV, 2}, {ScheduleKind::kZbH2, 1}}) {
    for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2Dropout}) {
      const ParityLayout layout = with(ParityLayout{{.pipeline = 2, .data = 2, .zero = model == ParityModel::kGpt2Dropout ? 1 : 3}}, kind);
      INFO(name_of(model) << " " << layout.str());
      const Config config = parity_config(model, layout, "fp32");
      const RaggedDataset data(29, 12, 61);
      const TemporaryDirectory directory;
      GatheredState straight, resumed;
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        for (int step = 0; step < 4; ++step) {
          if (step == 2) save(trainer, directory.path, 2);
          trainer.step(data, step, 3e-3);
        }
        straight.add(trainer);
      });
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        trainer.evaluate(data, 1);  // gathers full copies of other weights
        CheckpointReader reader(directory.path / checkpoint_name(2));
        load_state(trainer, reader);
        for (int step = 2; step < 4; ++step) trainer.step(data, step, 3e-3);
        resumed.add(trainer);
      });
      CHECK(straight.whole() == resumed.whole());
    }
  }
}

}  // namespace trireme::test
