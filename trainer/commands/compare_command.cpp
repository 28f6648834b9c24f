#include "trainer/commands/compare_command.h"

#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/printable.h"
#include "trainer/files/progress_line.h"
#include "trainer/report/comparison.h"

namespace trireme {
namespace {

struct CompareArguments {
  std::string first, second;
  bool json = false;
};

int compare_runs(const CompareArguments& arguments) {
  const report::RunRecord a = report::read_run(arguments.first), b = report::read_run(arguments.second);
  for (const report::RunRecord* run : {&a, &b})
    for (const std::string& problem : run->problems) std::cerr << printable(concat("warning: ", run->directory.string(), ": ", problem)) << '\n';
  report::CheckpointComparison checkpoints;
  {
    ProgressLine progress("comparing checkpoints", ProgressUnit::kBytes, report::bytes_to_compare({a.directory, b.directory}));
    checkpoints = report::compare_checkpoints({a.directory, b.directory}, [&](int64_t bytes) { progress.advance(bytes); });
  }
  if (a.steps.step.empty() && b.steps.step.empty() && checkpoints.steps.empty())
    throw DataError(
        concat(arguments.first, " and ", arguments.second, " have recorded no step, and have no checkpoints of one step: nothing to compare"));
  const report::Comparison result = report::compare(a, b, std::move(checkpoints));
  if (arguments.json)
    std::cout << report::comparison_json(result).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  else
    std::cout << printable(report::comparison_text(result));
  finish_output();
  return static_cast<int>(result.equal() ? ExitCode::kOk : ExitCode::kFindings);
}

}  // namespace

void add_compare_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("compare",
                         "Compare two runs: configuration, code, hardware, data, samples, losses and every byte of their checkpoints.\n"
                         "Prints the first step and the first tensor that differ, and the likely cause. The exit code is 0 if the runs "
                         "are equal and 1 if they differ. Restarts, times, hosts, names and directories do not count.");
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("A", arguments->first, "Run directory")->required()->type_name("DIR");
  command->add_option("B", arguments->second, "Run directory to compare with A")->required()->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &exit_code] { exit_code = compare_runs(*arguments); });
}

}  // namespace trireme
