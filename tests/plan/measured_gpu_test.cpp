#include <cmath>

#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"

using namespace trireme;

namespace {

struct Measured {
  std::string file;
  std::vector<std::string> sets;
  double tokens_per_second;
};

/// Steps of bench/llama-1.3b_nvidia-h200_2026-11-26.md.
const std::vector<Measured>& steps() {
  static const std::string llama = "configs/llama-1.3b-h200.yaml";
  static const std::vector<Measured> all = {
      {llama, {}, 63903},
      {llama, {"training.global_batch_size=16"}, 61512},
      {llama, {"training.sequence_length=8192", "training.micro_batch_size=4", "training.global_batch_size=8"}, 45508},
      {llama, {"training.global_batch_size=16", "training.recompute=full"}, 49724},
      {"scripts/bench/gpt2-124m.yaml",
       {"training.precision=bf16", "training.sequence_length=1024", "training.micro_batch_size=32", "training.global_batch_size=64"},
       513531},
      {"configs/llama-8b-8gpu.yaml",
       {"model.layers=6", "training.recompute=none", "parallel.data=1", "parallel.zero_stage=0", "training.sequence_length=4096",
        "training.micro_batch_size=4", "training.global_batch_size=8"},
       47993}};
  return all;
}

}  // namespace

// The figures of Trireme's kernels were measured kernel by kernel; none was fitted to a step.
TEST_CASE("steps measured on an H200 are forecast within 5 %") {
  ClusterConfig cluster;
  cluster.device.type = "H200";
  cluster.nodes = cluster.devices_per_node = 1;
  for (const Measured& step : steps()) {
    std::vector<std::string> sets = step.sets;
    sets.push_back("run.device=cuda");
    const LoadedConfig loaded = load_config(std::string(TRIREME_SOURCE_DIR "/") + step.file, sets);
    const Config config = resolve(loaded);
    const double seconds = forecast_time(config, resolve_cluster(cluster)).step_seconds;
    const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
    const double error = step.tokens_per_second * seconds / tokens - 1;
    CAPTURE(step.file, step.sets, error);
    CHECK(std::abs(error) < 0.05);
  }
}
