#include "trainer/commands/train_command.h"

#include <algorithm>
#include <functional>
#include <iostream>

#include "parallel/comm/watched.h"
#include "trainer/audit/run_audit.h"
#include "trainer/commands/restart_planner.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/idle_keys.h"
#include "trainer/config/load.h"
#include "trainer/federation/roster.h"
#include "trainer/files/printable.h"
#include "trainer/job/launcher.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/stop_signals.h"
#include "trainer/layout/elastic.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/encryption.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/watch.h"
#include "trainer/run/change.h"
#include "trainer/run/resume.h"
#include "trainer/run/run.h"
#include "trainer/run/run_data.h"
#include "trainer/submit/allocation_hosts.h"

namespace trireme {
namespace {

struct TrainArguments {
  std::optional<std::string> join;  ///< address of the coordinator; nullopt: `trireme train`
  std::string config;
  std::vector<std::string> sets;
  RunOptions options;
  std::optional<std::string> hosts;
  std::optional<int64_t> restarts;  ///< overrides the configuration
  std::optional<std::string> trace_steps;
  std::vector<std::string> changes;  ///< keys and sections, as given
  bool oversubscribe = false;

  int64_t restarts_of(const Config& of) const { return restarts.value_or(of.resilience.restarts); }
};

/// Only the launcher that started the ranks can restart them.
void refuse_restarts(const TrainArguments& arguments, const LaunchEnvironment& environment, const Config& config) {
  if (environment.is_rank_of_launch() || !environment.is_rank() || arguments.restarts_of(config) == 0) return;
  throw ConfigError(concat(arguments.restarts ? "--restarts" : "resilience.restarts",
                           ": the ranks were started by mpirun or srun, and `trireme train` ",
                           "can restart only ranks that it started; allowed 0, with restarts by that launcher (Slurm: sbatch --requeue)"));
}

/// Reads the configuration, and makes it that of a role if it has a federation.
LoadedConfig load_role(const TrainArguments& arguments, std::optional<federation::Role>& role) {
  LoadedConfig loaded = load_config(arguments.config, arguments.sets);
  role = federation::role_of(loaded.config, arguments.join);
  if (!role) return loaded;
  const FederationConfig& f = role->config;
  federation::read_identity(f.roster.value(), f.members, f.identity_key_file.value(), role->coordinates);
  return federation::config_of(*role, std::move(loaded));
}

/// The key of security.key_file; null without encryption.
std::shared_ptr<const crypto::Key> link_key(const Config& config) {
  return is_encrypted(config.security) ? std::make_shared<const crypto::Key>(read_link_key(config.security)) : nullptr;
}

/// `config` with the restarts of the launcher, whose ranks do not get its options: they take it for one that restarts.
Config with_restarts(Config config, const TrainArguments& arguments, const LaunchEnvironment& environment) {
  config.resilience.restarts = environment.is_rank_of_launch() ? std::max<int64_t>(1, config.resilience.restarts) : arguments.restarts_of(config);
  return config;
}

/// Trains, and records how this rank ends.
ExitCode train_recorded(RankRecord& record, const std::function<ExitCode()>& train) {
  try {
    const ExitCode code = train();
    record.end(RankRecord::Level::kInfo, code == ExitCode::kOk ? "done" : "stopped on request");
    return code;
  } catch (const std::exception& error) {
    record.end(RankRecord::Level::kError, concat("failed: ", printable(error)));
    throw;
  }
}

/// `loaded`: the configuration if it was already read; a pipe can be read only once.
ExitCode train_as_rank(const TrainArguments& arguments, const LaunchEnvironment& environment, std::optional<LoadedConfig> loaded,
                       std::optional<federation::Role> role) {
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    Config config;
    std::shared_ptr<const crypto::Key> key;
    collectively(*world, [&] {
      if (world->size() > 1) check_read_again(arguments.config);
      if (!loaded) loaded = load_role(arguments, role);
      config = resolve(*loaded, world->size());
      refuse_restarts(arguments, environment, config);
      if (world->rank() == 0) audit::check_audit(config.security);
      key = link_key(config);
    });
    const bool one_host = place.local_size == world->size();
    if (key && one_host && world->rank() == 0)
      std::cerr << "note: security.encryption=required: all ranks are on one host, so no message leaves it\n";
    world = with_encryption(std::move(world), place, config);
    // The machine outlives the watch, but is constructed under it, because opening GPUs may hang.
    Watch watch(*world, one_host, hang_seconds(config, may_use_gpus(config.run.device), one_host), environment.hub_address, key);
    const StackRequest stacks([&] { watch.record().request_stacks("requested by SIGQUIT"); });
    machine.emplace(std::move(world), place, config, MachineOptions{.world_is_encrypted = true});
    if (machine->world().rank() == 0) std::cerr << printable(idle_notes(*loaded, with_restarts(config, arguments, environment)));
    const std::unique_ptr<Communicator> noted = watched(machine->world(), watch.progress());
    RunOptions options = arguments.options;
    options.ranks_per_host = place.local_size;
    options.environment = environment;
    options.federation = role;
    options.record = &watch.record();
    return train_recorded(watch.record(), [&] { return run_training(machine->ctx(), *noted, config, options, watch.progress()); });
  });
}

/// Checks arguments, configuration and data before ranks are started.
int train(const TrainArguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  const StopRequest stop;  // created first: a stop request during set-up takes effect before the first step
  const SaveRequest save;
  const StackRequest stacks;
  ignore_closed_output();
  if (arguments.options.resume.empty()) throw ConfigError("--resume: empty; allowed auto, never, or the directory of a checkpoint or a run");
  if (arguments.options.resume == "never" && !arguments.options.change.empty())
    throw ConfigError("--change: --resume never resumes nothing; allowed with --resume auto or a directory");
  std::optional<LoadedConfig> loaded;
  std::optional<federation::Role> role;
  check_starter(environment);
  if (!environment.is_rank()) {
    loaded = load_role(arguments, role);
    const Config config = resolve(*loaded);
    const int ranks = mesh_shape(config.parallel).world();
    const int64_t restarts = arguments.restarts_of(config);
    if (ranks > 1 || arguments.hosts || restarts > 0) {
      check_read_again(arguments.config);
      audit::check_audit(config.security);
      if (config.run.device == DeviceType::kCuda && !arguments.hosts) cuda::gpu_count();
      const RunData data = role && role->coordinates ? no_run_data(config) : open_run_data(config);
      check_trace_steps(arguments.options, config, total_steps(config, data.train.sequences()));
      const bool starts = checkpoints_to_resume(config.run.directory, arguments.options.resume).empty();
      if (starts && config.training.initial_weights != "none") check_initial_weights(*open_initial_weights(config), config);
      if (arguments.hosts && !environment.slurm_job && !is_elastic(config.resilience)) check_addresses(*arguments.hosts);
      const bool in_pbs = !arguments.hosts && submit::pbs_hosts(environment).has_value();
      const bool one_host = !in_pbs && (arguments.hosts ? count_hosts(*arguments.hosts) : environment.allocated_nodes.value_or(1)) == 1 &&
                            !(arguments.hosts && is_elastic(config.resilience));  // whose hosts file may list others later
      const bool in_allocation = !arguments.hosts && environment.slurm_job && environment.allocated_nodes.value_or(1) > 1;
      if (is_elastic(config.resilience) && !arguments.hosts && !in_allocation && !in_pbs)
        std::cerr << "note: resilience.elastic=replicas: without --hosts FILE the launcher has no hosts to choose from\n";
      const std::vector<std::string> words = without("--restarts", without("--hosts", command_line));  // options of the launcher only
      return launch(environment, ranks, words,
                    {.hosts_file = arguments.hosts,
                     .allocation_hosts = in_pbs ? [&] { return submit::pbs_hosts(environment).value_or(""); }
                                         : in_allocation && is_elastic(config.resilience) ? [&] { return submit::allocation_hosts(environment); }
                                                                                          : std::function<std::string()>(),
                     .silence_seconds = hang_seconds(config, may_use_gpus(config.run.device), one_host),
                     .hub_key = link_key(config),
                     .run_directory = config.run.directory,
                     .output_is_log = true,
                     .restarts = restarts,
                     .worlds = legal_worlds(config),
                     .host_strikes = config.resilience.host_strikes,
                     .host_wait_seconds = static_cast<double>(config.resilience.host_wait_seconds),
                     .continuation = RestartPlanner(config.run.directory, arguments.options.resume, words),
                     .oversubscribe = arguments.oversubscribe});
    }
  } else if (arguments.hosts) {
    throw ConfigError("--hosts: the ranks were already started by mpirun or srun; pass the hosts to mpirun or srun");
  }
  return static_cast<int>(train_as_rank(arguments, environment, std::move(loaded), std::move(role)));
}

/// Options that `train` and `join` have in common.
void add_options(CLI::App& command, TrainArguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file of the run")->required();
  command.add_option("--set", arguments.sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command.add_option("--restarts", arguments.restarts, "How many times to restart the job after ranks died or hung; overrides resilience.restarts")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command.add_option("--hosts", arguments.hosts, "mpirun hostfile for the ranks that this command starts");
  add_oversubscribe_flag(command, arguments.oversubscribe);
}

std::pair<CLI::App*, std::shared_ptr<TrainArguments>> declare_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model; resumes the run in run.directory if there is one");
  const auto arguments = std::make_shared<TrainArguments>();
  add_options(*command, *arguments);
  command->add_option(
      "--resume", arguments->options.resume,
      "auto: resume from the newest complete checkpoint; never: start over; or the directory of a checkpoint, or of a run for its newest one");
  command
      ->add_option("--change", arguments->changes,
                   "Keys KEY,KEY... that may differ from the checkpoint that is resumed, such as training.steps, or sections, such as "
                   "training.schedule or data. The change is recorded in metrics.jsonl and in later checkpoints. Training data continue behind the "
                   "last sample, also with another training.global_batch_size; other data, data.weights, data.document_mask, "
                   "data.packing, data.packing_window or training.sequence_length begin at sample 0. Keys of model can never change")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--max-steps", arguments->options.max_steps, "Save a checkpoint and stop after this step of the run")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--trace-steps", arguments->trace_steps,
                      "Steps A:B to trace, from 1, at most 100: writes the actions of all ranks to trace.json for Perfetto (every operation in the "
                      "first step), and seconds by cause to metrics.jsonl");
  return {command, arguments};
}

}  // namespace

std::pair<CLI::App*, std::shared_ptr<void>> declare_train_command(CLI::App& app) { return declare_train(app); }

void add_train_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  const auto [command, declared] = declare_train(app);
  const std::shared_ptr<TrainArguments> arguments = declared;
  command->callback([arguments, &environment, command_line, &exit_code] {
    if (arguments->trace_steps) arguments->options.trace_steps = step_range(*arguments->trace_steps);
    arguments->options.change = changeable_keys(arguments->changes);
    exit_code = train(*arguments, environment, command_line);
  });
}

void add_join_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* command = app.add_subcommand("join", "Train as a member of a federation, on data that never leave this job");
  const auto arguments = std::make_shared<TrainArguments>();
  arguments->join.emplace();
  command->add_option("ADDRESS", *arguments->join, "HOST:PORT of the coordinator, which `trireme train` started")->required();
  add_options(*command, *arguments);
  command->callback([arguments, &environment, command_line, &exit_code] { exit_code = train(*arguments, environment, command_line); });
}

}  // namespace trireme
