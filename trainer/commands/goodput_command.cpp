#include "trainer/commands/goodput_command.h"

#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/printable.h"
#include "trainer/report/goodput_report.h"
#include "trainer/report/slurm_jobs.h"

namespace trireme {
namespace {

struct GoodputArguments {
  std::string run;
  bool json = false;
};

int print_goodput(const GoodputArguments& arguments) {
  report::RunRecord run = report::read_run(arguments.run);
  run.accounts = submit::ask_accounts(report::slurm_job_ids(run));
  for (const std::string& problem : run.problems) std::cerr << printable(concat("warning: ", run.directory.string(), ": ", problem)) << '\n';
  const std::optional<report::Goodput> goodput = report::goodput_of(run);
  if (!goodput) throw DataError(concat(run.directory.string(), ": no step with its time is recorded yet; expected a run that has trained"));
  if (arguments.json)
    std::cout << report::goodput_report_json(run, *goodput).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  else
    std::cout << printable(report::goodput_report_text(run, *goodput));
  finish_output();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

void add_goodput_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("goodput",
                                         "Say where the time of a run went, over all its jobs and restarts: start-up, load, steps, saves, lost "
                                         "steps, detection of failures, restarts and pauses.\nPrints the share that went into the steps of its "
                                         "history, beside the share that its failures and saves let expect.");
  const auto arguments = std::make_shared<GoodputArguments>();
  command->add_option("RUN", arguments->run, "Run directory")->required()->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &exit_code] { exit_code = print_goodput(*arguments); });
}

}  // namespace trireme
