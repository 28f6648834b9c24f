#include "trainer/commands/config_command.h"

#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/write.h"

namespace trireme {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> sets;
};

void print(const std::string& text) {
  std::cout << text;
  finish_output();
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* config = app.add_subcommand("config", "Show, describe or explain a configuration");
  config->require_subcommand(1);
  const auto add = [&](const char* name, const char* doc, bool needs_file, auto text) {
    CLI::App* command = config->add_subcommand(name, doc);
    const auto arguments = std::make_shared<Arguments>();
    CLI::Option* file = command->add_option("CONFIG", arguments->config, needs_file ? "YAML file of the run" : "YAML file to check first");
    file->required(needs_file);
    command->add_option("--set", arguments->sets, "key.path=value, over the file; may be repeated")->allow_extra_args(false)->needs(file);
    command->callback([arguments, text, &exit_code] {
      print(text(*arguments));
      exit_code = static_cast<int>(ExitCode::kOk);
    });
  };
  add("show", "Print the resolved configuration: every value, loadable again", true,
      [](const Arguments& arguments) { return to_yaml(resolve(load_config(arguments.config, arguments.sets))); });
  add("explain", "Print every key with its value, where it came from and what it means", true, [](const Arguments& arguments) {
    const LoadedConfig loaded = load_config(arguments.config, arguments.sets);
    return explain(loaded, resolve(loaded));
  });
  add("schema", "Print the JSON Schema of the configuration file", false, [](const Arguments& arguments) {
    if (!arguments.config.empty()) resolve(load_config(arguments.config, arguments.sets));
    return json_schema();
  });
}

}  // namespace trireme
