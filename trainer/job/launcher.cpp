#include "trainer/job/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/comm/mpi.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/printable.h"
#include "trainer/job/job_directory.h"
#include "trainer/job/job_hosts.h"
#include "trainer/job/launch_limits.h"
#include "trainer/job/loopback_only.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/mpirun_job.h"
#include "trainer/job/stop_signals.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/inspect.h"
#include "trainer/resilience/job_record.h"
#include "trainer/resilience/restart_policy.h"

namespace trireme {
namespace {

void say(const std::string& line) { write_all(STDERR_FILENO, line + "\n"); }

/// Says it from a thread of its own, for a caller that must not wait: nobody may be reading a full pipe. While an earlier text has not been read,
/// later ones are dropped.
void say_without_waiting(std::string text) {
  static std::atomic<bool> writing = false;
  if (writing.exchange(true)) return;
  try {
    std::thread([text = std::move(text)] {
      say(text);
      writing = false;
    }).detach();
  } catch (const std::system_error&) {  // the job is worth more than the text
    writing = false;
  }
}

struct JobEnd {
  int code = 0;
  int64_t step = 0;  ///< the highest step that a rank reached
  std::optional<Verdict> verdict = {};
  std::optional<int> first_rank = {};  ///< MpirunJob::first_rank
  bool moves = false;                  ///< it has stopped in order to continue on other hosts
};

/// Adds the end of a job to RUN/jobs.jsonl. Nothing is written about a job that found a finished run, or no run.
void record_exit(const std::filesystem::path& run, const LaunchTimes& times, const std::optional<Verdict>& verdict, int code) {
  try {
    const std::vector<JobRecord> jobs = read_job_records(run);
    const std::string launched = utc_text(times.job);
    const double when = seconds_since_1970(*time_of_utc(launched));
    const bool has_started = std::ranges::any_of(jobs, [&](const JobRecord& job) { return job.launched == when; });
    if (jobs.empty() || (!has_started && code != static_cast<int>(ExitCode::kInternal))) return;
    nlohmann::ordered_json fields = {{"launcher", utc_text(times.launcher)}, {"launched", launched}, {"code", code}};
    if (verdict && verdict->since_time > times.job) fields["failed"] = utc_text(verdict->since_time);
    append_job_record(run, "exit", fields);
  } catch (const Error& error) {
    say(printable(error));
  }
}

/// Adds the time for which the launcher has waited for hosts, if any.
void record_wait(const std::filesystem::path& run, double seconds) {
  if (seconds == 0 || !std::filesystem::exists(run)) return;
  try {
    append_job_record(run, "wait", {{"seconds", seconds}});
  } catch (const Error& error) {
    say(printable(error));
  }
}

JobEnd run_job(const LaunchEnvironment& environment, const LaunchTimes& times, const JobHosts::World& world,
               const std::vector<std::string>& arguments, const LaunchOptions& options, bool one_host, JobHosts& hosts, const StopRequest& stop,
               OutputRelay& relay) {
  const int ranks = world.ranks;
  VerdictBox verdicts;
  std::optional<Hub> hub;
  ::unsetenv(kHubVariable);
  ::setenv(kTimesVariable, text_of(times).c_str(), 1);
  if (options.silence_seconds) {
    hub.emplace(HubOptions{.ranks = ranks, .one_host = one_host, .silence_seconds = *options.silence_seconds, .key = options.hub_key},
                [&](const Verdict& verdict) { verdicts.put(verdict); });
    ::setenv(kHubVariable, hub->address().c_str(), 1);
  }
  // Before the job, whose end may also be requested: SIGQUIT to mpirun would end it.
  std::optional<StackRequest> stacks;
  if (hub)
    stacks.emplace([&] {
      hub->request_stacks([](const std::vector<RankState>& states, double now) { say_without_waiting(inspection_text(inspected(states, now))); });
    });
  const JobDirectory directory(environment, one_host, ranks);
  if (!directory.note().empty()) say(directory.note());
  const std::string session_before = options.run_directory ? newest_session(*options.run_directory) : "";
  MpirunJob job(mpirun_command(environment, ranks, arguments, world.hosts_file, one_host), stop, hub ? &verdicts : nullptr, relay,
                {.resumable = options.resumable, .has_findings = options.has_findings, .should_move = [&] { return hosts.should_move(); }});
  std::optional<LoopbackOnly> loopback;
  if (one_host) loopback.emplace(job.mpirun());
  const int code = job.wait();
  if (options.run_directory) record_exit(*options.run_directory, times, job.reported_verdict(), code);
  if (options.run_directory && job.reported_verdict()) {
    try {
      write_verdict(*options.run_directory, *job.reported_verdict(), session_before);
    } catch (const Error& error) {  // it has been printed
      say(printable(error));
    }
  }
  const bool moves = job.moves() && code == static_cast<int>(ExitCode::kRequeue) && !stop.requested();
  return {code, hub ? hub->furthest_step() : 0, job.reported_verdict(), job.first_rank(), moves};
}

/// Prevents endless recursion if the program found as mpirun only executes its arguments without starting ranks.
void refuse_recursion(const LaunchEnvironment& environment) {
  if (environment.launched_ranks)
    throw InternalError(
        concat(find_mpirun(environment).string(), ": started this program, but not as a rank; put the mpirun of Open MPI first in PATH"));
}

/// Says why, and returns true, unless a failed job is to be restarted after the delay of the policy.
bool gives_up(const Continuation& next, const JobEnd& end, bool elsewhere, const LaunchOptions& options, RestartPolicy& policy,
              const StopRequest& stop) {
  if (!next.no_retry_reason.empty()) {
    say(concat("giving up: ", next.no_retry_reason));
    return true;
  }
  const int64_t step = next.done > 0 ? std::max(end.step, next.done + 1) : end.step;  // the hub may lag behind when steps are short
  const RestartPolicy::Decision decision = policy.after({step, next.saved, elsewhere});
  if (!decision.delay) {
    say(concat("giving up: ", decision.reason));
    return true;
  }
  const auto seconds = decision.delay->count();
  say(concat("restart ", policy.used(), " of ", options.restarts, seconds > 0 ? concat(" in ", seconds, " s") : "", ", from ", next.from));
  stop.sleep(*decision.delay);
  return false;
}

/// Runs jobs until one ends with a final exit code, RestartPolicy gives up, or there are no hosts.
int run_jobs(const LaunchEnvironment& environment, std::vector<std::string> words, const LaunchOptions& options, bool one_host, JobHosts& hosts,
             const StopRequest& stop, OutputRelay& relay) {
  RestartPolicy policy(options.restarts);
  LaunchVariables variables;
  std::optional<JobEnd> end;
  for (LaunchTimes times = environment.times;;) {
    const std::optional<JobHosts::World> world = hosts.next(stop);
    if (end || hosts.waited_seconds() > 0) times.job = WallClock::now();
    if (end && options.run_directory) record_wait(*options.run_directory, hosts.waited_seconds());
    if (end && stop.requested()) {
      say("stopped on request before the restart; rerun the same command to resume");
      return static_cast<int>(ExitCode::kRequeue);
    }
    if (!world && stop.requested()) say("stopped on request before the first step; rerun the same command to resume");
    if (!world) return static_cast<int>(stop.requested() ? ExitCode::kRequeue : ExitCode::kInternal);
    check_ranks_of_host(world->host_ranks, usable_cores(), options.oversubscribe);
    make_room_for_files(world->host_ranks);
    variables.set(world->ranks, world->host_ranks, one_host);
    end = run_job(environment, times, *world, words, options, one_host, hosts, stop, relay);
    const bool failed = end->code == static_cast<int>(ExitCode::kInternal) && options.restarts > 0 && !stop.requested();
    if (!failed && !end->moves) return end->code;
    const Continuation next = options.continuation();
    const bool elsewhere = failed && hosts.failed(end->verdict, end->first_rank);
    if (failed && gives_up(next, *end, elsewhere, options, policy, stop)) return end->code;
    words = next.arguments;
  }
}

}  // namespace

int launch(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments, const LaunchOptions& options) {
  require_mpi();
  const bool one_host = !options.hosts_file && !options.allocation_hosts && environment.allocated_nodes.value_or(1) == 1;
  refuse_recursion(environment);
  struct Unset {
    ~Unset() {
      ::unsetenv(kRanksVariable);
      ::unsetenv(kTimesVariable);
    }
  } const at_the_end;
  ignore_closed_output();
  const StopRequest stop(StopRequest::Second::kReport);
  const SaveRequest save;  // also between two attempts
  OutputRelay relay(STDOUT_FILENO, options.output_is_log ? OutputRelay::Kind::kLog : OutputRelay::Kind::kText);
  const std::vector<int> worlds = options.worlds.empty() ? std::vector<int>{ranks} : options.worlds;
  JobHosts job_hosts(environment, {options.hosts_file, options.allocation_hosts, worlds, options.host_strikes, options.host_wait_seconds}, say);
  const int code = run_jobs(environment, arguments, options, one_host, job_hosts, stop, relay);
  relay.finish(std::chrono::seconds(stop.requested() ? 1 : options.output_is_log ? 10 : -1));
  const bool done = code == static_cast<int>(ExitCode::kOk) || code == static_cast<int>(ExitCode::kRequeue) ||
                    (options.has_findings && code == static_cast<int>(ExitCode::kFindings));
  if (done && relay.lost_text()) throw IoError("cannot write to standard output");
  return code;
}

void announce_start(const LaunchEnvironment& environment, int rank, int size) {
  const std::optional<int> expected = environment.launched_ranks;
  if (!expected) return;
  if (*expected != size)
    throw InternalError(concat("mpirun was asked to start ", *expected, " ranks, but MPI reports a world size of ", size,
                               ": mpirun and the MPI library belong to different installations; the mpirun used is ",
                               find_mpirun(environment).string()));
  if (rank == 0) write_all(STDERR_FILENO, concat(kStartedLine, "\n"));
}

void announce_ready(const LaunchEnvironment& environment) {
  if (environment.launch_output) write_all(STDERR_FILENO, concat(kReadyLine, "\n"));
}

bool standard_output_is_terminal(const LaunchEnvironment& environment) {
  if (environment.launch_output) return environment.launch_output->starts_with("terminal");
  return !environment.is_rank() && ::isatty(STDOUT_FILENO) != 0;
}

bool both_outputs_are_terminals(const LaunchEnvironment& environment) {
  if (environment.launch_output) return *environment.launch_output == "terminal";
  return standard_output_is_terminal(environment) && ::isatty(STDERR_FILENO) != 0;
}

}  // namespace trireme
