#include "trainer/commands/bench_scale.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

#include "kernels/core/check.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/bench/scale.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/temporary_file.h"
#include "trainer/config/load.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/output_files.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/strict_json.h"
#include "trainer/job/launcher.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/environment.h"
#include "trainer/machine/machine.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/place.h"
#include "trainer/plan/run_forecast.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

enum class Kind : uint8_t { kStrong, kWeak };

/// One number of ranks of one kind.
struct Trial {
  Kind kind;
  std::vector<std::string> sets;  ///< overrides of the configuration
  std::optional<Config> config;   ///< resolved; not set if left out
  bench::ScalePoint point;
};

std::vector<std::string> sets_of(const ScaleOptions& options, const Config& base, int64_t data, Kind kind) {
  const int64_t batch = base.training.global_batch_size * (kind == Kind::kWeak ? data : 1);
  std::vector<std::string> sets = options.sets;
  sets.push_back(concat("parallel.data=", data));
  sets.emplace_back("resilience.reroute=[]");  // names data ranks
  sets.push_back(concat("training.global_batch_size=", batch));
  return sets;
}

/// `places`: ranks that do not share cores or GPUs.
Trial trial_of(const ScaleOptions& options, const Config& base, int64_t data, Kind kind, int64_t places) {
  Trial trial{.kind = kind, .sets = sets_of(options, base, data, kind), .config = {}, .point = {}};
  trial.point.ranks = base.parallel.tensor * base.parallel.pipeline * data;
  trial.point.shares_cores = trial.point.ranks > places;
  try {
    trial.config = resolve(load_config(options.config, trial.sets));
    trial.point.tokens = static_cast<double>(trial.config->training.global_batch_size * trial.config->training.sequence_length);
  } catch (const ConfigError& error) {
    trial.point.left_out = error.what();
  }
  return trial;
}

/// The machine of the forecasts.
struct ForecastFigures {
  std::optional<ClusterConfig> cluster;  ///< resolved, one node; not set: no figures for this GPU
  std::string source;
};

ForecastFigures figures_of(const ScaleOptions& options, const Config& base, bool gpu) {
  const std::string named = !options.cluster.empty() ? options.cluster : base.plan.cluster == "none" ? "" : base.plan.cluster;
  if (!named.empty()) return {resolve_cluster(load_cluster(named)), "the figures of " + named};
  if (!gpu) {
    ClusterConfig cluster;
    cluster.device.type = "cpu";
    cluster.device.cores = usable_cores();
    return {resolve_cluster(cluster), "built-in figures of a CPU; `bench machine` and `bench comm --cluster` measure this one"};
  }
  const std::string name = cuda::gpu_properties(0).name, type = device_type_of(name);
  if (type.empty()) return {std::nullopt, concat("nothing: ", name, " has no built-in figures")};
  return {resolve_cluster(load_cluster(type)), "built-in figures of " + type};
}

/// Forecast of a step on as many ranks of `threads` cores as the trial has.
std::optional<double> forecast_of(const Trial& trial, const ForecastFigures& figures, int64_t threads) {
  if (!figures.cluster || !trial.config) return std::nullopt;
  ClusterConfig cluster = *figures.cluster;
  cluster.nodes = 1;
  if (cluster.device.cores)  // the ranks use no other cores
    cluster.device.cores = std::min(*cluster.device.cores, static_cast<double>(trial.point.ranks * threads));
  cluster.device.memory = *cluster.device.memory * static_cast<double>(cluster.devices_per_node) / static_cast<double>(trial.point.ranks);
  cluster.devices_per_node = trial.point.ranks;
  Config config = *trial.config;
  set_device(config, cluster);
  return forecast_time(config, cluster).step_seconds;
}

/// Restores the environment in the destructor: what launch() sets for ranks that share cores must not slow the next ones down.
class EnvironmentGuard {
 public:
  EnvironmentGuard() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const size_t equals = text.find('=');
      if (equals != text.npos) before_.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  ~EnvironmentGuard() {
    ::clearenv();
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  EnvironmentGuard(const EnvironmentGuard&) = delete;
  EnvironmentGuard& operator=(const EnvironmentGuard&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

/// Runs `bench step` on the ranks of a trial and keeps the fastest round.
void measure(const LaunchEnvironment& environment, const ScaleOptions& options, Trial& trial, bool first) {
  const TemporaryFile file(environment.temporary_directory.value_or(""));
  std::vector<std::string> words{
      "bench", "step", options.config, "--steps", std::to_string(options.steps), "--warmup", std::to_string(options.warmup)};
  words.insert(words.end(), {"--seconds", "0.01", "--output", file.path()});
  for (const std::string& set : trial.sets) words.insert(words.end(), {"--set", set});
  const EnvironmentGuard guard;
  ::setenv("OMP_NUM_THREADS", std::to_string(options.threads).c_str(), 1);
  const int code = launch(environment, static_cast<int>(trial.point.ranks), words, {.resumable = false, .oversubscribe = options.oversubscribe});
  if (code != 0) throw Error(static_cast<ExitCode>(code), concat("bench scale: measuring ", trial.point.ranks, " ranks ended with exit code ", code));
  const nlohmann::json step = parse_value(read_text(file.path()), file.path())["step_seconds"];
  const double median = step["median"], low = step["low"], high = step["high"];
  trial.point.seconds = first ? median : std::min(trial.point.seconds, median);
  trial.point.low = first ? low : std::min(trial.point.low, low);
  trial.point.high = first ? high : std::max(trial.point.high, high);
}

std::vector<bench::ScalePoint> points_of(const std::vector<Trial>& trials, Kind kind) {
  std::vector<bench::ScalePoint> points;
  for (const Trial& trial : trials)
    if (trial.kind == kind) points.push_back(trial.point);
  // The smallest number of ranks is the same step for both kinds, and is measured once.
  if (kind == Kind::kWeak) points.insert(points.begin(), trials.front().point);
  return points;
}

std::vector<OutputFile> outputs_of(const ScaleOptions& options) {
  std::vector<OutputFile> files;
  if (!options.output.empty()) files.push_back({"--output", options.output});
  if (!options.svg.empty()) files.push_back({"--svg", options.svg});
  return files;
}

}  // namespace

int bench_scale(const LaunchEnvironment& environment, const ScaleOptions& options) {
  if (environment.is_rank()) throw ConfigError("bench scale: starts its own ranks; start it without mpirun or srun");
  check_read_again(options.config);
  check_outputs(outputs_of(options), {options.config});
  std::vector<std::string> one = options.sets;
  one.emplace_back("parallel.data=1");  // the ranks follow from the other degrees
  one.emplace_back("resilience.reroute=[]");
  const LoadedConfig loaded = load_config(options.config, one);
  const Config& base = loaded.config;
  if (base.parallel.islands > 1)
    throw ConfigError(concat("bench scale: parallel.islands=", base.parallel.islands, ": scales the data degree of one island; allowed islands 1"));
  const int64_t least = base.parallel.tensor * base.parallel.pipeline, gpus = base.run.device == DeviceType::kCpu ? 0 : usable_gpus();
  bench::ScaleResult result;
  result.gpu = gpus > 0;
  result.threads = options.threads;
  const int64_t hosts = environment.allocated_nodes.value_or(1);
  result.places = hosts * (result.gpu ? gpus * base.run.ranks_per_gpu : usable_cores() / options.threads);
  const int64_t most = options.ranks > 0 ? options.ranks : std::max(2 * least, result.places);
  if (most < least) throw ConfigError(concat("--ranks=", most, ": fewer than tensor x pipeline; allowed integer from ", least));
  const ForecastFigures figures = figures_of(options, base, result.gpu);
  if (figures.cluster) check_against_cluster(base, *figures.cluster);
  result.figures = figures.source;
  std::vector<Trial> trials;
  for (int64_t data = 1; least * data <= most; data *= 2)
    for (const Kind kind : {Kind::kStrong, Kind::kWeak})
      if (data > 1 || kind == Kind::kStrong) trials.push_back(trial_of(options, base, data, kind, result.places));
  if (!trials.front().point.left_out.empty()) throw ConfigError(trials.front().point.left_out);
  for (Trial& trial : trials) trial.point.forecast = forecast_of(trial, figures, options.threads);

  result.foreign_share = bench::foreign_share_during([&] {
    ProgressLine progress("measuring", ProgressUnit::kItems, options.rounds * static_cast<int64_t>(trials.size()));
    for (int64_t round = 0; round < options.rounds; ++round)
      for (Trial& trial : trials) {
        if (trial.config) measure(environment, options, trial, round == 0);
        progress.advance(1);
      }
  });
  result.strong = bench::strong_curve(points_of(trials, Kind::kStrong));
  result.weak = bench::weak_curve(points_of(trials, Kind::kWeak));
  ordered_json json = {{"bench", "scale"}};
  json.update(bench::scale_json(result));
  std::vector<std::string> texts;
  if (!options.output.empty()) texts.push_back(json.dump() + "\n");
  if (!options.svg.empty()) texts.push_back(bench::scale_svg(result, concat(options.config, " on ", host_name())));
  write_outputs(outputs_of(options), texts);
  std::cout << (options.json ? json.dump() + "\n" : bench::scale_text(result));
  finish_output();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace trireme
