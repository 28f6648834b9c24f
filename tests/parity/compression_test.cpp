// Compressed gradients in training: under every sharding, with equal replicas, resumed bit for bit, and resharded without losing what was not yet sent.
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/reducer_state.h"
#include "trainer/model/declare.h"
#include "trainer/plan/gradient_seconds.h"
#include "trainer/plan/kernel_time.h"

namespace trireme::test {
namespace {

const RaggedDataset kData(29, 12, 61);

Config config_of(ParityModel model, const std::string& spec, CompressionMethod method, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  layout.gradient_accumulation = GradientAccumulation::kFull;
  Config config = parity_config(model, layout, precision);
  config.training.compression.method = method;
  config.training.compression.block = 32;
  config.training.compression.ratio = 0.1;
  config.training.compression.rank = 2;
  if (method == CompressionMethod::kOneBitAdam) config.training.compression.warmup_steps = 1;
  return config;
}

struct Case {
  ParityModel model;
  const char* layout;
};
/// Every ZeRO stage, replicas, both axes beside it, an embedding with a copy on the last stage, key and value heads that ranks share.
constexpr Case kCases[] = {{ParityModel::kGpt2, "dp2z0"},
                           {ParityModel::kLlamaGrouped, "pp2dp3z1"},
                           {ParityModel::kLlamaGrouped, "tp2pp2dp2z2-sp"},
                           {ParityModel::kGpt2Dropout, "tp2pp2dp2z3"},
                           {ParityModel::kLlamaGrouped, "tp4dp2z3"},
                           {ParityModel::kLlama, "dp4rep2z3"},
                           {ParityModel::kGpt2, "tp2dp4rep2z1"}};
constexpr CompressionMethod kLossy[] = {CompressionMethod::kInt8,      CompressionMethod::kInt4,    CompressionMethod::kSign,
                                        CompressionMethod::kTopK,      CompressionMethod::kRandomK, CompressionMethod::kPowerSgd,
                                        CompressionMethod::kOneBitAdam};

/// Calls body(model, layout, method) for each layout with each `stride`-th of the lossy methods, begun at another one for each layout: with a stride of
/// three, each layout meets two or three methods, and each method two or three layouts.
template <class Body>
void for_each_pair(size_t stride, const Body& body) {
  for (size_t i = 0; i < std::size(kCases); ++i)
    for (size_t k = i % stride; k < std::size(kLossy); k += stride) body(kCases[i].model, kCases[i].layout, kLossy[k]);
}

std::vector<double> steps(Trainer& trainer, int first, int last) {
  std::vector<double> all;
  for (int step = first; step < last; ++step) {
    const StepResult result = trainer.step(kData, step, 3e-3);
    all.insert(all.end(), {result.loss, result.grad_norm});
  }
  return all;
}

/// What all ranks keep, added up by element of the global parameters.
class Mass {
 public:
  void add(Trainer& trainer) {
    const std::lock_guard lock(mutex_);
    for (const ReducerBox& box : trainer.reducer_boxes()) {
      const ParamSpec& spec = *box.spec;
      if (!spec.is_primary_copy && trainer.mesh().tensor->size() > 1 && spec.box.extent == spec.shape) continue;  // equal on all tensor ranks
      std::vector<double>& sum = sums_[spec.name];
      sum.resize(static_cast<size_t>(spec.shape[0] * spec.shape[1]));
      const double* value = box.values.data<double>();
      for (int64_t row = 0; row < box.box.extent[0]; ++row)
        for (int64_t column = 0; column < box.box.extent[1]; ++column)
          sum[static_cast<size_t>((box.box.start[0] + row) * spec.shape[1] + box.box.start[1] + column)] += *value++;
    }
  }
  double largest() const {
    double all = 0;
    for (const auto& [name, sum] : sums_)
      for (const double x : sum) all = std::max(all, std::abs(x));
    return all;
  }
  double difference(const Mass& other) const {
    double worst = 0;
    for (const auto& [name, sum] : sums_) {
      const auto found = other.sums_.find(name);
      for (size_t i = 0; i < sum.size(); ++i) worst = std::max(worst, std::abs(sum[i] - (found == other.sums_.end() ? 0 : found->second[i])));
    }
    return worst;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> sums_;
};

}  // namespace

TEST_CASE("compression: top_k of all elements trains as the plain sum does") {
  for (const auto& [model, layout] : kCases) {
    INFO(layout);
    Config compressed = config_of(model, layout, CompressionMethod::kTopK, "fp32"),
           plain = config_of(model, layout, CompressionMethod::kNone, "fp32");
    compressed.training.compression.ratio = 1;
    const RunRecord expected = train_on_threads(plain, 3, Device::kCpu), actual = train_on_threads(compressed, 3, Device::kCpu);
    for (size_t step = 0; step < expected.loss.size(); ++step) {
      CHECK(std::abs(actual.loss[step] - expected.loss[step]) < 2e-6 * expected.loss[step]);
      CHECK(std::abs(actual.grad_norm[step] - expected.grad_norm[step]) < 2e-5 * expected.grad_norm[step]);
    }
  }
}

TEST_CASE("compression: every encoding trains under every sharding, and replicas hold equal bits") {
  for (const auto& [model, layout] : kCases) {
    const RunRecord plain = train_on_threads(config_of(model, layout, CompressionMethod::kNone), 3, Device::kReference);
    for (const CompressionMethod method : kLossy) {
      INFO(layout << ", " << kNames<CompressionMethod>[static_cast<size_t>(method)]);
      const RunRecord record = train_on_threads(config_of(model, layout, method), 3, Device::kReference, true);
      CHECK(record.loss[0] == plain.loss[0]);  // the loss before the first update
      const size_t first_compressed = method == CompressionMethod::kOneBitAdam ? 1 : 0;
      CHECK(record.grad_norm[first_compressed] != plain.grad_norm[first_compressed]);
      CHECK(std::isfinite(record.loss[2]));
    }
  }
}

static void check_resumes(size_t stride) {
  for_each_pair(stride, [](ParityModel model, const char* layout, CompressionMethod method) {
    const TemporaryDirectory directory;
    const Config config = config_of(model, layout, method);
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      steps(trainer, 0, 2);
      save(trainer, directory.path, 2);
      const std::vector<double> through = steps(trainer, 2, 4);
      Arena arena(Device::kReference, true);
      Context ctx{Device::kReference, &arena, 1};
      Trainer resumed(ctx, trainer.mesh().world, config, true);
      CheckpointReader reader(directory.path / checkpoint_name(2));
      TRIREME_CHECK(load_state(resumed, reader).empty(), "the same layout reads its own errors");
      TRIREME_CHECK(steps(resumed, 2, 4) == through, layout, ": training differs after a resume");
    });
  });
}

TEST_CASE("compression: training resumes bit for bit") { check_resumes(3); }

TEST_CASE("compression: training resumes bit for bit with every method in every layout", "[slow]") { check_resumes(1); }

TEST_CASE("compression: one_bit_adam is plain training during its warm-up, and then steps with a second moment that stays") {
  constexpr int kWarmup = 3;
  for (const auto& [model, layout] : kCases) {
    INFO(layout);
    Config config = config_of(model, layout, CompressionMethod::kOneBitAdam);
    config.training.compression.warmup_steps = kWarmup;
    const RunRecord plain = train_on_threads(config_of(model, layout, CompressionMethod::kNone), kWarmup + 1, Device::kReference);
    const RunRecord record = train_on_threads(config, kWarmup + 1, Device::kReference, true);
    for (size_t step = 0; step <= kWarmup; ++step) CHECK(std::abs(record.loss[step] - plain.loss[step]) < 1e-12 * plain.loss[step]);
    CHECK(record.grad_norm[kWarmup] != plain.grad_norm[kWarmup]);
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      const auto second_moments = [&] {
        std::vector<double> all;
        for (const auto& stage : trainer.stages())
          for (size_t unit = 0; unit < stage->params().units().size(); ++unit) {
            const Tensor& v = stage->optimizer()->state(static_cast<int>(unit))[1].shard;
            all.insert(all.end(), v.data<double>(), v.data<double>() + v.numel());
          }
        return all;
      };
      steps(trainer, 0, kWarmup - 1);
      const std::vector<double> early = second_moments();
      steps(trainer, kWarmup - 1, kWarmup);
      const std::vector<double> kept = second_moments();
      TRIREME_CHECK(early != kept, layout, ": the second moment follows the warm-up");
      steps(trainer, kWarmup, kWarmup + 2);
      TRIREME_CHECK(kept == second_moments(), layout, ": the second moment stays");
    });
  }
}

void check_mass_after_resharding(CompressionMethod method) {
  INFO(kNames<CompressionMethod>[static_cast<size_t>(method)]);
  const TemporaryDirectory directory;
  const Config first = config_of(ParityModel::kLlamaGrouped, "tp2pp2dp2z2", method);
  Mass saved;
  on_ranks(first, [&](Trainer& trainer) {
    trainer.initialise();
    steps(trainer, 0, 3);
    save(trainer, directory.path, 3);
    saved.add(trainer);
  });
  REQUIRE(saved.largest() > 0);
  int64_t step = 3;
  for (const char* layout : {"dp4rep2z3", "dp3z0", "pp2dp2z0", "tp2dp4rep2z1", "tp4dp2z3"}) {
    INFO(layout);
    Mass loaded;
    on_ranks(config_of(ParityModel::kLlamaGrouped, layout, method), [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(step));
      TRIREME_CHECK(!load_state(trainer, reader).empty(), "the user must know that errors were added up");
      loaded.add(trainer);
      save(trainer, directory.path, step + 1);
    });
    CHECK(saved.difference(loaded) < 1e-15);
    CHECK(loaded.difference(saved) < 1e-15);
    ++step;
  }
  on_ranks(config_of(ParityModel::kLlamaGrouped, "tp2", method), [&](Trainer& trainer) {
    CheckpointReader reader(directory.path / checkpoint_name(step));
    TRIREME_CHECK(load_state(trainer, reader).find("dropped") != std::string::npos, "one data rank sends nothing, so what others kept is dropped");
  });
}

TEST_CASE("compression: another layout takes over all that was not yet sent") {
  for (const CompressionMethod method : {CompressionMethod::kTopK, CompressionMethod::kPowerSgd}) check_mass_after_resharding(method);
}

TEST_CASE("compression: memory and bytes on the wire are forecast exactly") {
  for (const auto& [model, layout] : kCases) {
    std::vector<double> counted;  // bytes by rank
    for (const CompressionMethod method :
         {CompressionMethod::kNone, CompressionMethod::kInt8, CompressionMethod::kTopK, CompressionMethod::kPowerSgd}) {
      const Config config = config_of(model, layout, method);
      const MeasuredRun run = measured_run(config, kData);
      for (int rank = 0; rank < world_of(config); ++rank) {
        INFO(layout << ", rank " << rank);
        const RankMemory forecast = checked_forecast(config, run, rank);
        const CommunicationRecord& record = run.communication[static_cast<size_t>(rank)];
        double sent = 0;
        for (const char* group : {"shard", "replicate"})
          for (const char* verb : {"reduce_scatter", "all_reduce", "all_to_all_v"}) sent += record.entry(group, verb).wire_bytes;
        sent += record.entry("replicate", "all_gather").wire_bytes;
        // The all-reduces over `data` of a plain run count tokens, as those of every run do.
        const double over_data = record.entry("data", "all_reduce").wire_bytes;
        if (method == CompressionMethod::kNone) {
          counted.push_back(over_data);
          continue;
        }
        sent += over_data - counted[static_cast<size_t>(rank)];
        CHECK(3 * forecast.reduced_bytes == Approx(sent).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("compression: the planner's time of power_sgd comes from the bytes that the forecast counts") {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster = resolve_cluster(cluster);
  for (const char* layout : {"dp2z0", "dp4rep2z3", "dp6z1"}) {
    INFO(layout);
    const Config config = config_of(ParityModel::kLlama, layout, CompressionMethod::kPowerSgd, "fp32");
    double elements = 0;
    for (const ParamSpec& spec : whole_model(config.model)) elements += static_cast<double>(spec.box.numel());
    const double ranks = static_cast<double>(*config.parallel.data), bytes = gradient_message_bytes(config, stacks().front());
    CHECK(bytes < 4);
    CHECK(forecast_memory(config, 0, world_of(config)).reduced_bytes == Approx(2 * (ranks - 1) / ranks * bytes * elements).epsilon(1e-12));
    const GradientSeconds sums(config, stacks().front(), cluster);
    const GroupPlacement data = place_of(*config.parallel.data, 1, cluster);
    CHECK(sums.scatter({}, elements) > all_reduce_seconds(data, bytes * elements, cluster));
    CHECK(sums.scatter({}, elements) < 1.5 * all_reduce_seconds(data, bytes * elements, cluster) + traffic_seconds(56 * elements, 4, cluster));
    CHECK(sums.replicas(data, elements) == 0);
  }
}

TEST_CASE("compression: the memory of power_sgd with a warm-up is that of the steps after it") {
  for (const char* layout : {"dp2z0", "dp4rep2z3"}) {
    INFO(layout);
    Config config = config_of(ParityModel::kLlama, layout, CompressionMethod::kPowerSgd);
    config.training.compression.warmup_steps = 3;
    const MeasuredRun run = measured_run(config, kData, 6);
    for (int rank = 0; rank < world_of(config); ++rank)
      CHECK(forecast_memory(config, rank, world_of(config)).peak == run.memory[static_cast<size_t>(rank)].peak);
  }
}

TEST_CASE("compression: power_sgd trains alike under every division of the data ranks") {
  for (const bool feedback : {true, false}) {
    const auto record_of = [&](const char* layout) {
      Config config = config_of(ParityModel::kLlama, layout, CompressionMethod::kPowerSgd);
      config.training.compression.error_feedback = feedback;
      return train_on_threads(config, 4, Device::kReference, true);
    };
    const RunRecord expected = record_of("dp2z0");
    for (const char* layout : {"dp2z1", "dp3z0", "dp3z2", "dp4z0", "dp4z1", "dp4z2", "dp4z3", "dp4rep2z1", "dp4rep2z3", "dp6rep2z2", "dp6rep3z3",
                               "pp2dp2z0", "pp2dp3z1", "pp2dp4rep2z3"}) {
      INFO(layout << (feedback ? "" : ", without error feedback"));
      CHECK(difference(expected, record_of(layout), 1e-10) == "");
    }
  }
}

TEST_CASE("compression: power_sgd saves the bases once, in the bytes of the forecast, and reads them where they fit") {
  const auto bytes_of = [](Trainer& trainer) {
    double bytes = 0;
    for (const StateTensor& tensor : reducer_tensors(trainer)) bytes += static_cast<double>(tensor.box.numel() * size_of(tensor.dtype));
    return all_reduce_scalar(trainer.mesh().world, bytes, ReduceOp::kSum);
  };
  for (const auto& [model, layout] : kCases) {
    for (const bool feedback : {true, false}) {
      Config config = config_of(model, layout, CompressionMethod::kPowerSgd);
      config.training.compression.error_feedback = feedback;
      on_ranks(config, [&](Trainer& trainer) {
        TRIREME_CHECK(bytes_of(trainer) == static_cast<double>(reducer_bytes(config)), layout, ": ", bytes_of(trainer), " bytes saved, ",
                      reducer_bytes(config), " forecast");
      });
    }
  }
  const TemporaryDirectory directory;
  std::map<std::string, std::vector<double>> saved;
  std::mutex mutex;
  const auto for_bases = [](Trainer& trainer, const auto& body) {
    for (const ReducerMatrix& matrix : trainer.reducer_matrices())
      body(matrix.spec->name, std::vector<double>(matrix.values.data<double>(), matrix.values.data<double>() + matrix.values.numel()));
  };
  on_ranks(config_of(ParityModel::kLlama, "dp2z1", CompressionMethod::kPowerSgd), [&](Trainer& trainer) {
    trainer.initialise();
    steps(trainer, 0, 2);
    save(trainer, directory.path, 2);
    const std::lock_guard lock(mutex);
    for_bases(trainer, [&](const std::string& name, const auto& values) { saved[name] = values; });
  });
  REQUIRE(saved.size() > 5);
  for (const char* layout : {"dp4rep2z3", "pp2dp3z0", "tp2dp2z2"}) {
    on_ranks(config_of(ParityModel::kLlama, layout, CompressionMethod::kPowerSgd), [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(2));
      const bool split = trainer.mesh().tensor->size() > 1;
      TRIREME_CHECK((load_state(trainer, reader).find("starts from new ones") != std::string::npos) == split, layout,
                    ": the message about the bases");
      for_bases(trainer, [&](const std::string& name, const auto& values) {
        TRIREME_CHECK(split || saved.at(name) == values, layout, ": another basis of ", name);
      });
      steps(trainer, 2, 3);
    });
  }
}

TEST_CASE("compression: the places of errors in another layout") {
  using Sources = std::map<std::string, std::vector<std::string>>;
  CHECK(reducer_sources({"scatter_error.0", "scatter_error.1"}, {"scatter_error.0", "scatter_error.1"}) ==
        Sources{{"scatter_error.0", {"scatter_error.0"}}, {"scatter_error.1", {"scatter_error.1"}}});
  CHECK(reducer_sources({"scatter_error.0", "scatter_error.1", "scatter_error.2"}, {"scatter_error.0", "scatter_error.1"}) ==
        Sources{{"scatter_error.0", {"scatter_error.0", "scatter_error.2"}}, {"scatter_error.1", {"scatter_error.1"}}});
  CHECK(reducer_sources({"owner_error", "replica_error.0", "replica_error.1"}, {"scatter_error.0", "scatter_error.1"}) ==
        Sources{{"scatter_error.0", {"owner_error", "replica_error.0"}}, {"scatter_error.1", {"replica_error.1"}}});
  CHECK(reducer_sources({"scatter_error.0", "scatter_error.0.tied"}, {"owner_error", "replica_error.0"}) ==
        Sources{{"replica_error.0", {"scatter_error.0", "scatter_error.0.tied"}}});
  CHECK(reducer_sources({"scatter_error.3.tied", "owner_error.tied"}, {"scatter_error.0", "scatter_error.0.tied", "scatter_error.1"}) ==
        Sources{{"scatter_error.0.tied", {"owner_error.tied", "scatter_error.3.tied"}}});
  CHECK(reducer_sources({"scatter_error.0"}, {}) == Sources{{"", {"scatter_error.0"}}});
}

}  // namespace trireme::test
