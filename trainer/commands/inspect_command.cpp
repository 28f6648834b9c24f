#include "trainer/commands/inspect_command.h"

#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "trainer/commands/finish_output.h"
#include "trainer/resilience/inspect.h"
#include "trainer/resilience/stacks.h"

namespace trireme {
namespace {

constexpr unsigned kMostSeconds = 60;  ///< for reading stacks

struct InspectArguments {
  std::string run;
  bool json = false, previous = false;
  std::optional<int> rank, process;
};

ExitCode inspect(const InspectArguments& arguments) {
  if (arguments.run.empty() != arguments.process.has_value()) throw ConfigError("inspect: allowed either RUN or --process PID");
  if (arguments.process && (arguments.json || arguments.previous || arguments.rank))
    throw ConfigError("--process: prints stacks as text only; allowed without --json, --previous and --rank");
  if (arguments.rank && arguments.json) throw ConfigError("--rank: prints its history as text only; allowed without --json");
  if (arguments.process) {
    ::alarm(kMostSeconds);  // the threads of the process continue when this one ends, whatever it waits for
    std::cout << stacks_of(*arguments.process);
  } else if (arguments.rank) {
    const auto path = black_box_path(arguments.run, *arguments.rank);
    const BlackBoxContents box = read_black_box(arguments.previous ? previous_black_box(path) : path);
    if (box.owner.rank != *arguments.rank) throw DataError(concat(path.string(), ": that of rank ", box.owner.rank, " of ", box.owner.world));
    std::cout << history_text(box);
  } else {
    const Inspection inspection = inspect_run(arguments.run, arguments.previous);
    std::cout << (arguments.json ? inspection_json(inspection).dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n"
                                 : inspection_text(inspection));
  }
  finish_output();
  return ExitCode::kOk;
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("inspect", "Show where each rank of a run is or was, and which operation waits for whom");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("RUN", arguments->run, "Directory of a run that is running, has ended or has died");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("--previous", arguments->previous, "The start of the run before the newest one");
  command->add_option("--rank", arguments->rank, "Print the last steps, actions and operations of this rank")->check(CLI::Range(0, 1 << 20));
  command->add_option("--process", arguments->process, "Print the stacks of all threads of a process of this host, which continues")
      ->check(CLI::Range(1, 1 << 22));
  command->callback([arguments, &exit_code] { exit_code = static_cast<int>(inspect(*arguments)); });
}

}  // namespace trireme
