#include "trainer/commands/train_command.h"

#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/launcher.h"
#include "trainer/loop/run.h"

namespace trireme {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> sets;
  RunOptions options;
  std::optional<std::string> hosts;
};

ExitCode train_as_rank(const Arguments& arguments) {
  return run_on_ranks([&](std::unique_ptr<Communicator> world, const RankPlace& place) {
    Config config;
    agree(*world, [&] { config = resolve(load_config(arguments.config, arguments.sets), world->size()); });
    Machine machine(std::move(world), place, config);
    return run_training(machine.ctx(), machine.world(), config, arguments.options);
  });
}

/// Everything that can be refused is refused here, before a rank is started.
int train(const Arguments& arguments, const std::vector<std::string>& command_line) {
  if (arguments.options.resume.empty()) throw ConfigError("--resume: empty; allowed auto, never, or a checkpoint's directory");
  if (!under_launcher()) {
    const Config config = resolve(load_config(arguments.config, arguments.sets));
    const int ranks = mesh_shape(config.parallel).world();
    if (ranks > 1 || arguments.hosts) {
      if (config.run.device == "cuda" && !arguments.hosts) cuda::gpu_count();
      open_dataset(config, config.data.train);
      if (!config.data.validation.empty()) open_dataset(config, config.data.validation);
      return launch(ranks, command_line, arguments.hosts);
    }
  } else if (arguments.hosts) {
    throw ConfigError("--hosts: this process is already one of the ranks that mpirun or srun started; give the hosts to mpirun or srun");
  }
  return static_cast<int>(train_as_rank(arguments));
}

}  // namespace

void add_train_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "Train a model; continues the run in run.directory where there is one");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run")->required();
  command->add_option("--set", arguments->sets, "key.path=value, over the file; may be repeated")->allow_extra_args(false);
  command->add_option("--resume", arguments->options.resume, "auto: continue from the newest whole checkpoint; never; or a checkpoint's directory");
  command->add_option("--max-steps", arguments->options.max_steps, "Stop after this step of the run, with a checkpoint")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--hosts", arguments->hosts, "mpirun hostfile for the ranks this command starts");
  command->callback([arguments, command_line, &exit_code] { exit_code = train(*arguments, command_line); });
}

}  // namespace trireme
