#include "trainer/commands/train_command.h"

#include "parallel/comm/watched.h"
#include "trainer/commands/continuer.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"
#include "trainer/resilience/watch.h"
#include "trainer/run/resume.h"
#include "trainer/run/run.h"
#include "trainer/run/run_data.h"

namespace trireme {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> sets;
  RunOptions options;
  std::optional<std::string> hosts;
  std::optional<int64_t> restarts;  ///< over the configuration's
  std::optional<std::string> trace_steps;
  bool oversubscribe = false;

  int64_t restarts_of(const Config& of) const { return restarts.value_or(of.resilience.restarts); }
};

/// Who did not start the ranks cannot start them again.
void refuse_restarts(const Arguments& arguments, const LaunchEnvironment& environment, const Config& config) {
  if (environment.is_rank_of_launch() || !environment.is_rank() || arguments.restarts_of(config) == 0) return;
  throw ConfigError(
      concat(arguments.restarts ? "--restarts" : "resilience.restarts", ": these ranks were started by mpirun or srun, and `trireme train` ",
             "can start again only what it has started itself; allowed 0, and a restart by who started them (Slurm: sbatch --requeue)"));
}

/// `loaded`: the configuration, where it has been read already; a pipe can be read only once.
ExitCode train_as_rank(const Arguments& arguments, const LaunchEnvironment& environment, std::optional<LoadedConfig> loaded) {
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place) {
    Config config;
    collectively(*world, [&] {
      if (world->size() > 1) check_read_again(arguments.config);
      if (!loaded) loaded = load_config(arguments.config, arguments.sets);
      config = resolve(*loaded, world->size());
      refuse_restarts(arguments, environment, config);
    });
    std::optional<Machine> machine;  // outlives the watch, but is made under it: opening GPUs may hang
    Watch watch(*world, place.local_size == world->size(), config.resilience.hang_seconds, environment.hub_address);
    machine.emplace(std::move(world), place, config);
    const std::unique_ptr<Communicator> noted = watched(machine->world(), watch.progress());
    RunOptions options = arguments.options;
    options.ranks_per_host = place.local_size;
    options.environment = environment;
    return run_training(machine->ctx(), *noted, config, options, watch.progress());
  });
}

/// Everything that can be refused is refused here, before a rank is started.
int train(const Arguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  const StopRequest stop;  // from the beginning: a request while a rank sets up is answered before its first step
  ignore_closed_output();
  if (arguments.options.resume.empty()) throw ConfigError("--resume: empty; allowed auto, never, or a checkpoint's directory");
  std::optional<LoadedConfig> loaded;
  if (!environment.is_rank()) {
    loaded = load_config(arguments.config, arguments.sets);
    const Config config = resolve(*loaded);
    const int ranks = mesh_shape(config.parallel).world();
    const int64_t restarts = arguments.restarts_of(config);
    if (ranks > 1 || arguments.hosts || restarts > 0) {
      check_read_again(arguments.config);
      if (config.run.device == "cuda" && !arguments.hosts) cuda::gpu_count();
      const RunData data = open_run_data(config);
      check_trace_steps(arguments.options, config, total_steps(config, data.train.sequences()));
      const bool starts = checkpoints_to_resume(config.run.directory, arguments.options.resume).empty();
      if (starts && config.training.initial_weights != "none") check_initial_weights(WeightSource(config.training.initial_weights), config);
      const std::vector<std::string> words = without("--restarts", without("--hosts", command_line));  // the launcher's own
      return launch(environment, ranks, words,
                    {.hosts_file = arguments.hosts,
                     .silence_seconds = config.resilience.hang_seconds,
                     .output_is_log = true,
                     .restarts = restarts,
                     .continuation = Continuer(config.run.directory, arguments.options.resume, words),
                     .oversubscribe = arguments.oversubscribe});
    }
  } else if (arguments.hosts) {
    throw ConfigError("--hosts: this process is already one of the ranks that mpirun or srun started; give the hosts to mpirun or srun");
  }
  return static_cast<int>(train_as_rank(arguments, environment, std::move(loaded)));
}

}  // namespace

void add_train_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "Train a model; continues the run in run.directory where there is one");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run")->required();
  command->add_option("--set", arguments->sets, "key.path=value, over the file; may be repeated")->allow_extra_args(false);
  command->add_option("--resume", arguments->options.resume, "auto: continue from the newest whole checkpoint; never; or a checkpoint's directory");
  command->add_option("--max-steps", arguments->options.max_steps, "Stop after this step of the run, with a checkpoint")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--restarts", arguments->restarts, "Times to start the job again after ranks have died or hung; over resilience.restarts")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option(
      "--trace-steps", arguments->trace_steps,
      "A:B, steps from 1, at most 100, on CPUs: what all ranks do in these goes to trace.json (Perfetto opens it), in the first with every "
      "operation, seconds by cause to metrics.jsonl");
  command->add_option("--hosts", arguments->hosts, "mpirun hostfile for the ranks this command starts");
  add_oversubscribe_flag(*command, arguments->oversubscribe);
  command->callback([arguments, &environment, command_line, &exit_code] {
    if (arguments->trace_steps) arguments->options.trace_steps = step_range(*arguments->trace_steps);
    exit_code = train(*arguments, environment, command_line);
  });
}

}  // namespace trireme
