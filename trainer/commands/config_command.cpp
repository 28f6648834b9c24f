#include "trainer/commands/config_command.h"

#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/idle_keys.h"
#include "trainer/config/write.h"
#include "trainer/files/printable.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> sets;
  bool lowered = false, cluster = false, sweep = false;
};

void print(const std::string& text) {
  std::cout << text;
  finish_output();
}

/// Errors: ConfigError for every reason that the file cannot be read, so that the exit code is not that of a difference.
Config resolved_file(const std::string& path) {
  try {
    return resolve(load_config(path));
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

void add_diff(CLI::App& config, int& exit_code) {
  CLI::App* command = config.add_subcommand("diff",
                                            "Print the keys whose values differ between two resolved configurations, as `key: a -> b`.\n"
                                            "The exit code is 0 if they are equal, 1 if they differ and 64 if one cannot be read.");
  const auto files = std::make_shared<std::pair<std::string, std::string>>();
  command->add_option("A", files->first, "YAML file of a run, such as the config.yaml of a run directory")->required();
  command->add_option("B", files->second, "YAML file to compare with A")->required();
  command->callback([files, &exit_code] {
    const std::string text = config_diff(resolved_file(files->first), resolved_file(files->second));
    print(text);
    exit_code = static_cast<int>(text.empty() ? ExitCode::kOk : ExitCode::kFindings);
  });
}

std::string schedule_head(const Config& config) {
  return concat("# ", config.parallel.schedule, ": ", counted(config.parallel.pipeline, "rank"), ", ",
                counted(config.parallel.layers_per_stage->size(), "stage"), ", ", counted(microbatches_of(config), "micro-batch", "micro-batches"),
                "; with --set parallel.virtual_stages=", *config.parallel.virtual_stages, "\n");
}

/// `of`: what precedes the pipeline rank in the line above each list.
std::string lowered_text(const ActionLists& lists, const std::string& of) {
  std::string text;
  for (size_t rank = 0; rank < lists.size(); ++rank) text += concat("# ", of, "pipeline rank ", rank, "\n", to_string(lists[rank]), "\n");
  return text;
}

/// The actions of a step, in the format of parallel.schedule_file, or lowered as the ranks run them (for reading only), with resilience.reroute of every
/// data rank.
std::string actions(const Config& config, bool lowered) {
  if (!lowered) return schedule_head(config) + to_text(training_schedule(config));
  const LoweredSchedule schedule = lowered_schedule(config);
  if (!schedule.rerouting) return schedule_head(config) + lowered_text(schedule.training, "");
  std::string text = schedule_head(config);
  for (size_t data = 0; data < schedule.rerouted_training.size(); ++data)
    text += lowered_text(schedule.rerouted_training[data], concat("data rank ", data, ", "));
  return text;
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* config = app.add_subcommand("config", "Show, describe, explain or compare configurations");
  config->require_subcommand(1);
  const auto add = [&](const char* name, const char* doc, bool needs_file, auto text) {
    CLI::App* command = config->add_subcommand(name, doc);
    const auto arguments = std::make_shared<ConfigArguments>();
    CLI::Option* file =
        command->add_option("CONFIG", arguments->config, needs_file ? "YAML file of the run" : "YAML file to check before printing the schema");
    file->required(needs_file);
    command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")
        ->allow_extra_args(false)
        ->needs(file);
    command->callback([arguments, text, &exit_code] {
      print(text(*arguments));
      exit_code = static_cast<int>(ExitCode::kOk);
    });
    return std::pair(command, arguments);
  };
  add("show", "Print the resolved configuration: every value, as YAML that can be loaded again", true, [](const ConfigArguments& arguments) {
    const LoadedConfig loaded = load_config(arguments.config, arguments.sets);
    const Config resolved = resolve(loaded);
    std::cerr << printable(idle_notes(loaded, resolved));
    return to_yaml(resolved);
  });
  add("explain", "Print every key with its value, source, meaning and allowed values", true, [](const ConfigArguments& arguments) {
    const LoadedConfig loaded = load_config(arguments.config, arguments.sets);
    return explain(loaded, resolve(loaded));
  });
  const auto [schedule, options] =
      add("actions", "Print the pipeline schedule of a step, in the format of parallel.schedule_file", true,
          [](const ConfigArguments& arguments) { return actions(resolve(load_config(arguments.config, arguments.sets)), arguments.lowered); });
  schedule->add_flag("--lowered", options->lowered,
                     "Print the lowered lists that ranks run, with transfers, gathers and reductions (for reading only)");
  add_diff(*config, exit_code);
  const auto [schema, schema_options] = add("schema", "Print the JSON Schema of the configuration file", false, [](const ConfigArguments& arguments) {
    if (!arguments.config.empty()) resolve(load_config(arguments.config, arguments.sets));
    return arguments.cluster ? cluster_schema() : arguments.sweep ? sweep_schema() : json_schema();
  });
  schema->add_flag("--cluster", schema_options->cluster, "Print the schema of the cluster file for `plan --cluster`")->excludes("CONFIG");
  schema->add_flag("--sweep", schema_options->sweep, "Print the schema of the file of `sweep`")->excludes("CONFIG")->excludes("--cluster");
}

}  // namespace trireme
