#include "trainer/commands/doctor_command.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>

#include "trainer/commands/finish_output.h"
#include "trainer/commands/restart_planner.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/doctor/deadline.h"
#include "trainer/doctor/examine.h"
#include "trainer/doctor/judge.h"
#include "trainer/doctor/report.h"
#include "trainer/files/printable.h"
#include "trainer/job/launch_limits.h"
#include "trainer/job/launcher.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/world.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

struct DoctorArguments {
  std::string config;
  std::vector<std::string> sets;
  std::optional<std::string> hosts;
  bool json = false;
  bool oversubscribe = false;
};

// Rank 0 reports first if the others do not answer, then the others, then the process that started them. All is over after 20 seconds.
constexpr double kFirstRankSeconds = 14, kOtherRankSeconds = 15.5, kLauncherSeconds = 16.5;

/// Prints the report and returns the exit code.
ExitCode print_report(const DoctorArguments& arguments, const doctor::JobFacts& job, Clock::time_point begin) {
  const std::vector<doctor::Finding> findings = doctor::diagnose(job);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (arguments.json)  // paths may contain invalid UTF-8
    std::cout << doctor::report_json(job, findings, seconds).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  else
    std::cout << printable(doctor::report_text(job, findings));
  finish_output();
  return doctor::worst_of(findings) == doctor::Grade::kBad ? ExitCode::kFindings : ExitCode::kOk;
}

/// The configuration for the ranks that were started, or for its own number of ranks if the two differ; the report says that they do.
std::optional<Config> resolved(const std::optional<LoadedConfig>& loaded, int ranks) {
  if (!loaded) return std::nullopt;
  try {
    return resolve(*loaded, ranks);
  } catch (const ConfigError&) {
    return resolve(*loaded);
  }
}

std::optional<LoadedConfig> loaded_config(const DoctorArguments& arguments) {
  if (arguments.config.empty()) return std::nullopt;
  return load_config(arguments.config, arguments.sets);
}

/// One rank of the job, or a process alone.
ExitCode examine_as_rank(const DoctorArguments& arguments, const LaunchEnvironment& environment) {
  const auto begin = Clock::now();
  std::mutex mutex;
  std::optional<doctor::JobFacts> known;  // of rank 0
  const auto give_up = [&](const std::string& stage) {
    const std::lock_guard lock(mutex);
    if (!known) return;
    known->no_answer = concat("no answer within ", kFirstRankSeconds, " s; rank 0 waits for ", stage);
    try {
      print_report(arguments, *known, begin);
    } catch (const std::exception& error) {  // nobody reads the report
      std::cerr << concat(printable(error), "\n") << std::flush;
    }
    ::_exit(static_cast<int>(ExitCode::kFindings));
  };
  const auto leave = [](const std::string& stage) {
    std::cerr << concat("doctor: a rank on ", host_name(), " waits for ", stage, "; no answer within ", kOtherRankSeconds, " s\n") << std::flush;
    ::_exit(static_cast<int>(ExitCode::kFindings));
  };
  doctor::Deadline first(kFirstRankSeconds, give_up), last(kOtherRankSeconds, leave);
  const auto stage = [&](const std::string& text) {
    first.stage(text);
    last.stage(text);
  };
  stage("the start of MPI");
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto&) {
    doctor::Subject subject{.environment = environment, .place = place};
    stage("all ranks: the configuration");
    collectively(*world, [&] { subject.config = resolved(loaded_config(arguments), world->size()); });
    const auto partial = [&](const doctor::JobFacts& job) {
      const std::lock_guard lock(mutex);
      if (world->rank() == 0) known = job;
    };
    const doctor::JobFacts job = doctor::examine(*world, subject, stage, partial);
    ExitCode code = ExitCode::kOk;
    stage("all ranks: the report");
    {
      const std::lock_guard lock(mutex);  // reports once
      known.reset();
      if (world->rank() == 0) code = print_report(arguments, job, begin);
    }
    return static_cast<ExitCode>(static_cast<int>(all_reduce_scalar(*world, static_cast<int>(code), ReduceOp::kMax)));
  });
}

/// Why ranks cannot be started from this host; empty if nothing is known against it.
std::string obstacle(const DoctorArguments& arguments, const doctor::JobFacts& job) {
  std::string checks;
  for (const doctor::Finding& finding : doctor::diagnose(job)) {
    const bool matters = finding.check == "mpi" || finding.check == "open_files" || finding.check == "shared_memory" || finding.check == "processes";
    if (matters && finding.grade == doctor::Grade::kBad) checks += concat(checks.empty() ? "see " : ", ", finding.check);
  }
  if (!checks.empty()) return checks;
  try {
    check_ranks_of_host(job.ranks.front().local_size, usable_cores(), arguments.oversubscribe);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Starts the ranks of a configuration, and examines this host alone if that fails.
int examine_job(const DoctorArguments& arguments, const LaunchEnvironment& environment, const Config& config, int ranks,
                const std::vector<std::string>& command_line) {
  const auto begin = Clock::now();
  const bool one_host = !arguments.hosts && environment.allocated_nodes.value_or(1) == 1;
  const doctor::Subject subject{
      .environment = environment, .place = {.local_size = one_host ? ranks : 1, .threads = environment.omp_threads.value_or(0)}, .config = config};
  const auto alone = [&](const std::string& why) {
    doctor::JobFacts job = doctor::job_of(subject, doctor::examine_host(subject, 0));
    job.not_started = why;
    return static_cast<int>(print_report(arguments, job, begin));
  };
  if (const std::string why = obstacle(arguments, doctor::job_of(subject, doctor::examine_start(subject, 0))); !why.empty()) return alone(why);
  check_read_again(arguments.config);
  int code = 0;
  {
    const doctor::Deadline deadline(kLauncherSeconds, [](const std::string&) { ::kill(::getpid(), SIGTERM); });  // ends the launch
    code = launch(environment, ranks, without("--hosts", command_line),
                  {.hosts_file = arguments.hosts, .resumable = false, .has_findings = true, .oversubscribe = arguments.oversubscribe});
  }
  if (code != static_cast<int>(ExitCode::kInternal)) return code;
  return alone(concat("starting them ended with exit code ", code, "; see the messages above"));
}

int examine(const DoctorArguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  if (arguments.config.empty() && !arguments.sets.empty()) throw ConfigError("--set: overrides a key of CONFIG, which is not given");
  if (arguments.hosts && environment.is_rank())
    throw ConfigError("--hosts: the ranks were already started by mpirun or srun; pass the hosts to mpirun or srun");
  if (arguments.hosts && arguments.config.empty()) throw ConfigError("--hosts: starts the ranks of CONFIG, which is not given");
  if (const std::optional<LoadedConfig> loaded = environment.is_rank() ? std::nullopt : loaded_config(arguments)) {
    const Config config = resolve(*loaded);
    const int ranks = mesh_shape(config.parallel).world();
    if (ranks > 1 || arguments.hosts) return examine_job(arguments, environment, config, ranks, command_line);
  }
  return static_cast<int>(examine_as_rank(arguments, environment));
}

}  // namespace

void add_doctor_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* command = app.add_subcommand("doctor", "Report what this machine, or all ranks of the job, can do for a run, and what to change first");
  const auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run: its memory, checkpoints, data and layout are compared with the machine");
  command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command->add_option("--hosts", arguments->hosts, "mpirun hostfile for the ranks that this command starts");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  add_oversubscribe_flag(*command, arguments->oversubscribe);
  command->callback([arguments, &environment, command_line, &exit_code] { exit_code = examine(*arguments, environment, command_line); });
}

}  // namespace trireme
