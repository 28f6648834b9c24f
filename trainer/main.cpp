#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/commands/audit_command.h"
#include "trainer/commands/bench_command.h"
#include "trainer/commands/checkpoint_command.h"
#include "trainer/commands/compare_command.h"
#include "trainer/commands/completion_command.h"
#include "trainer/commands/config_command.h"
#include "trainer/commands/data_command.h"
#include "trainer/commands/doctor_command.h"
#include "trainer/commands/eval_command.h"
#include "trainer/commands/generate_command.h"
#include "trainer/commands/goodput_command.h"
#include "trainer/commands/inspect_command.h"
#include "trainer/commands/manual_command.h"
#include "trainer/commands/plan_command.h"
#include "trainer/commands/report_command.h"
#include "trainer/commands/submit_command.h"
#include "trainer/commands/sweep_command.h"
#include "trainer/commands/tokenizer_command.h"
#include "trainer/commands/train_command.h"
#include "trainer/commands/verify_command.h"
#include "trainer/config/foreign_keys.h"
#include "trainer/files/printable.h"
#include "trainer/files/terminal_filter.h"
#include "trainer/job/launch_environment.h"
#include "trainer/job/launcher.h"
#include "trainer/job/omp_spinning.h"
#include "trainer/job/stop_signals.h"
#include "trainer/machine/build_info.h"

namespace {

/// Opens closed standard streams on /dev/null. Otherwise a file opened later could get their descriptor and receive their output.
void open_standard_streams() {
  for (int opened = 0; opened >= 0 && opened <= 2;)
    if ((opened = ::open("/dev/null", O_RDWR)) > 2) ::close(opened);
}

/// The commands that may follow what has been parsed: those of the innermost command.
std::vector<std::string> commands_of(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = const_cast<CLI::App&>(app).get_subcommands();
  if (!parsed.empty()) return commands_of(*parsed.back());
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_name().empty()) names.push_back(command->get_name());
  return names;
}

/// What an option of another program is here: keys of the configuration are given with --set.
std::string option_advice(const std::string& argument) {
  const trireme::ForeignName* const name = trireme::foreign_name(argument);
  if (name == nullptr) return "";
  return trireme::foreign_suggestion(argument) + (name->key[0] == '\0' ? "" : trireme::concat(", in the file or as --set ", name->key, "=VALUE"));
}

int run(int argc, char** argv, const trireme::LaunchEnvironment& environment) {
  CLI::App app("Trireme trains large language models with tensor, pipeline and data parallelism from one YAML file.", "trireme");
  app.set_version_flag("--version", [] { return trireme::version_text(); });
  app.require_subcommand(1);
  int exit_code = 0;
  trireme::add_train_command(app, environment, {argv + 1, argv + argc}, exit_code);
  trireme::add_join_command(app, environment, {argv + 1, argv + argc}, exit_code);
  trireme::add_eval_command(app, environment, exit_code);
  trireme::add_generate_command(app, environment, {argv + 1, argv + argc}, exit_code);
  trireme::add_checkpoint_command(app, environment, exit_code);
  trireme::add_data_command(app, exit_code);
  trireme::add_tokenizer_command(app, exit_code);
  trireme::add_config_command(app, exit_code);
  trireme::add_bench_command(app, environment, {argv + 1, argv + argc}, exit_code);
  trireme::add_plan_command(app, exit_code);
  trireme::add_submit_command(app, exit_code);
  trireme::add_doctor_command(app, environment, {argv + 1, argv + argc}, exit_code);
  trireme::add_verify_command(app, exit_code);
  trireme::add_report_command(app, exit_code);
  trireme::add_compare_command(app, exit_code);
  trireme::add_sweep_command(app, environment, exit_code);
  trireme::add_goodput_command(app, exit_code);
  trireme::add_inspect_command(app, exit_code);
  trireme::add_audit_command(app, exit_code);
  trireme::add_completion_command(app, exit_code);
  trireme::add_manual_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::cerr << "trireme: " << trireme::printable(trireme::ConfigError(error.what()));
    // CLI11 reports a misspelt command as a missing one.
    const std::vector<std::string> rest = app.remaining(true);
    if (error.get_name() == "RequiredError" && !rest.empty())
      std::cerr << "; unknown argument: " << trireme::printable(rest.front())
                << trireme::printable(trireme::command_suggestion(rest.front(), commands_of(app)));
    // It names those that it did not expect in its message only.
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
      for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc))
        if (argument.starts_with("--") && std::string(error.what()).find(argument) != std::string::npos)
          std::cerr << trireme::printable(option_advice(argument));
    std::cerr << "; see trireme --help" << std::endl;
    return static_cast<int>(trireme::ExitCode::kUsage);
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  try {
    const trireme::LaunchEnvironment environment = trireme::read_launch_environment();
    trireme::limit_spinning(argv, environment);
    trireme::start_signal_thread();
    std::optional<trireme::TerminalFilter> output, messages;
    if (trireme::standard_output_is_terminal(environment)) output.emplace(std::cout);
    if (environment.is_rank() ? trireme::both_outputs_are_terminals(environment) : ::isatty(STDERR_FILENO) != 0)
      messages.emplace(std::cerr, trireme::TerminalFilter::CarriageReturn::kPasses);
    return run(argc, argv, environment);
  } catch (const std::exception& error) {
    std::cerr << (dynamic_cast<const trireme::Error*>(&error) != nullptr ? "" : "trireme: ") << trireme::printable(error) << std::endl;
    return static_cast<int>(trireme::exit_code_of(error));
  }
}
