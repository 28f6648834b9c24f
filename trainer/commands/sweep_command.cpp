#include "trainer/commands/sweep_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"
#include "trainer/machine/build_info.h"
#include "trainer/machine/environment.h"
#include "trainer/machine/machine.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/submit/quote.h"
#include "trainer/sweep/page.h"
#include "trainer/sweep/results.h"
#include "trainer/sweep/runner.h"
#include "trainer/sweep/slurm_script.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct SweepArguments {
  std::string file;
  bool dry_run = false, json = false, retry_failed = false;
  std::optional<int64_t> point;
};

/// The sweep with its points, which are checked before anything is written.
struct CheckedSweep {
  sweep::SweepFile file;
  std::vector<sweep::PointRun> runs;
  sweep::Slots slots;
};

/// `alone`: for one point.
CheckedSweep check_sweep(const std::string& path, bool alone, const LaunchEnvironment& environment) {
  CheckedSweep checked{sweep::load_sweep(path), {}, {}};
  if (alone) checked.file.config.where.at_once = 1;
  checked.runs = sweep::load_points(checked.file, sweep::points_of(checked.file));
  const auto federated = [](const sweep::PointRun& run) { return is_federated(run.config.security); };
  if (std::ranges::any_of(checked.runs, federated))
    throw ConfigError(
        concat(checked.file.base, ": security.federation.members: a member of a federation is not a run by itself; allowed 0 in a sweep"));
  const bool gpus = std::ranges::any_of(checked.runs, [](const sweep::PointRun& run) { return may_use_gpus(run.config.run.device); });
  checked.slots = sweep::slots_of(checked.file.config.where, checked.runs, usable_cores(), gpus, environment);
  return checked;
}

/// Refuses a directory of something else. Errors: ConfigError.
void check_directory(const sweep::SweepFile& file) {
  std::error_code error;
  const fs::path directory = file.directory;
  if (!fs::exists(directory, error) || fs::exists(directory / "points.json", error)) return;
  const std::string where = concat(file.sources.name_of(file.sources.locate("directory")), " directory=", file.directory);
  if (!fs::is_directory(directory, error)) throw ConfigError(concat(where, ": not a directory; allowed a new or an empty directory"));
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "run.lock" && entry.path().filename() != "points.json.tmp")
      throw ConfigError(concat(where, ": not empty, and not the directory of a sweep; allowed a new or an empty directory"));
}

void print_points(const CheckedSweep& checked, bool json) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const sweep::PointRun& run : checked.runs) {
    nlohmann::ordered_json row = {{"point", run.point.index}};
    for (const sweep::Setting& one : run.point.settings) row[json ? one.key : sweep::short_key(one.key, run.point.settings)] = one.value;
    row["steps"] = run.steps;
    row["ranks"] = run.ranks;
    rows.push_back(std::move(row));
  }
  if (json)
    std::cout << rows.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  else
    std::cout << printable(concat(table_of(rows), counted(checked.runs.size(), "point"), ", ",
                                  counted(sweep::planned_steps(checked.file.config, checked.runs), "step"), ", ", checked.slots.at_once,
                                  " at a time; in ", checked.file.directory, "\n"));
  finish_output();
}

void say(const std::string& line) { std::cerr << printable(line) << std::endl; }

/// Writes and prints what the sweep has found so far.
sweep::Results report_results(const CheckedSweep& checked, sweep::Runner& runner, bool json) {
  sweep::Results results = sweep::results_of(checked.file, checked.runs, runner.standings(), runner.histories());
  sweep::write_results(results);
  sweep::write_page(results, version());
  if (json)
    std::cout << sweep::results_json(results).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  else
    std::cout << printable(sweep::results_table(results));
  finish_output();
  return results;
}

std::string summary(const sweep::Results& results) {
  std::string text = concat(results.count(sweep::PointState::kDone), " of ", counted(results.rows.size(), "point"), " done");
  for (const auto& [state, words] : {std::pair(sweep::PointState::kDropped, "dropped by halving"), std::pair(sweep::PointState::kFailed, "failed"),
                                     std::pair(sweep::PointState::kLeftOut, "left out by the budget")})
    if (const size_t count = results.count(state); count > 0) text += concat(", ", count, " ", words);
  return concat(text, "; report ", results.file->directory, "/sweep.html");
}

int exit_code_of(sweep::SweepEnd end, const sweep::Results& results) {
  if (end == sweep::SweepEnd::kStopped || end == sweep::SweepEnd::kBlocked) return static_cast<int>(ExitCode::kRequeue);
  if (end == sweep::SweepEnd::kKilled) return static_cast<int>(ExitCode::kInternal);
  const bool complete = results.failed() == 0 && end != sweep::SweepEnd::kHours;
  return static_cast<int>(complete ? ExitCode::kOk : ExitCode::kFindings);
}

void say_end(sweep::SweepEnd end, const sweep::SweepFile& file) {
  if (end == sweep::SweepEnd::kStopped) say("stopped on request, checkpoints saved; rerun the same command to resume");
  if (end == sweep::SweepEnd::kKilled) say("ended immediately by a second stop request; unsaved progress is lost");
  if (end == sweep::SweepEnd::kHours)
    say(concat("budget.hours=", *file.config.budget.hours, " are used up; points that were running have saved checkpoints"));
  if (end == sweep::SweepEnd::kBlocked) say("other processes run the points that are left; rerun the same command when they have ended");
  if (end == sweep::SweepEnd::kFailures)
    say(concat("stop_after_failures=", *file.config.stop_after_failures, " is reached: no further point is started"));
}

int run_locally(const CheckedSweep& checked, const SweepArguments& arguments, const StopRequest& stop) {
  sweep::Runner runner(checked.file, checked.runs, checked.slots, stop, say);
  const sweep::SweepEnd end = runner.run();
  const sweep::Results results = report_results(checked, runner, arguments.json);
  say(summary(results));
  if (results.best() != nullptr)
    say(concat("best: point ", results.best()->run->point.index, " (", sweep::label_of(results.best()->run->point), "), ", checked.file.directory,
               "/best.yaml"));
  say_end(end, checked.file);
  return exit_code_of(end, results);
}

/// Writes the batch script of the points that are left, and what the others have found.
int prepare_array(const CheckedSweep& checked, const SweepArguments& arguments, const StopRequest& stop) {
  sweep::Runner runner(checked.file, checked.runs, checked.slots, stop, say, checked.runs.size());  // starts nothing
  const sweep::Results results = report_results(checked, runner, arguments.json);
  const int64_t at_once = checked.file.config.where.at_once.value_or(static_cast<int64_t>(checked.runs.size()));
  const std::string script = sweep::array_script(results, at_once, fs::read_symlink("/proc/self/exe").string());
  const fs::path path = fs::path(checked.file.directory) / "array.sbatch";
  say(summary(results));
  if (!script.empty()) {
    write_durably(path, script);
    say(concat("submit the other points by: sbatch ", submit::quoted_word(path.string())));
  }
  return exit_code_of(sweep::SweepEnd::kComplete, results);
}

int run_one_point(const CheckedSweep& checked, int64_t point, const StopRequest& stop) {
  const auto index = static_cast<size_t>(point);
  if (index >= checked.runs.size())
    throw ConfigError(concat("--point: ", point, " is not a point of the sweep; allowed integer from 0 to ", checked.runs.size() - 1));
  sweep::compare_with_begun(checked.file, checked.runs, true);
  sweep::Runner runner(checked.file, checked.runs, checked.slots, stop, say, index);
  const sweep::SweepEnd end = runner.run();
  if (end == sweep::SweepEnd::kStopped) return static_cast<int>(ExitCode::kRequeue);
  const std::optional<sweep::Failure>& failure = runner.histories()[index].failure;
  if (end == sweep::SweepEnd::kKilled || (failure && failure->code > 127)) return static_cast<int>(ExitCode::kInternal);
  if (failure) return failure->code;
  return static_cast<int>(runner.standings()[index].state == sweep::PointState::kDone ? ExitCode::kOk : ExitCode::kFindings);
}

int sweep_points(const SweepArguments& arguments, const LaunchEnvironment& environment) {
  const StopRequest stop(StopRequest::Second::kReport);
  ignore_closed_output();
  if (environment.is_rank())
    throw ConfigError("sweep: started as a rank by mpirun or srun, but the sweep starts the ranks of its points itself; start it alone");
  const CheckedSweep checked = check_sweep(arguments.file, arguments.point.has_value(), environment);
  const sweep::SweepFile& file = checked.file;
  if (arguments.dry_run) {
    print_points(checked, arguments.json);
    return static_cast<int>(ExitCode::kOk);
  }
  if (arguments.point) return run_one_point(checked, *arguments.point, stop);
  const bool array = file.config.where.place == SweepPlace::kSlurm;
  if (array) sweep::require_sbatch(environment, file);
  check_directory(file);
  sweep::compare_with_begun(file, checked.runs, false);
  const RunLock lock(file.directory, {}, {"directory", "another sweep is running there"});
  sweep::begin_or_compare(file, checked.runs);
  if (arguments.retry_failed)
    for (const sweep::PointRun& run : checked.runs)
      if (sweep::history_of(file.directory, run).failure) sweep::record_retry(file.directory, run.point.index);
  return array ? prepare_array(checked, arguments, stop) : run_locally(checked, arguments, stop);
}

}  // namespace

void add_sweep_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "sweep",
      "Train all points of a sweep: a configuration with values that vary. Resumes the sweep in its directory if there "
      "is one.\nThe exit code is 0 if all points within the budget are done, 1 if some have failed or the hours are used up, and 75 after a "
      "stop request.");
  const auto arguments = std::make_shared<SweepArguments>();
  command->add_option("FILE", arguments->file, "YAML file of the sweep")->required();
  CLI::Option* dry = command->add_flag("--dry-run", arguments->dry_run, "Check all points and print them; write nothing");
  CLI::Option* json = command->add_flag("--json", arguments->json, "Print one JSON value in place of the table");
  CLI::Option* retry = command->add_flag("--retry-failed", arguments->retry_failed, "Start failed points again, from their newest checkpoints");
  command->add_option("--point", arguments->point, "Run one point by its index, as a task of an array job of a sweep that has begun")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->excludes(dry)
      ->excludes(json)
      ->excludes(retry);
  command->callback([arguments, &environment, &exit_code] { exit_code = sweep_points(*arguments, environment); });
}

}  // namespace trireme
