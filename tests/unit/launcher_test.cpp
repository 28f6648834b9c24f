// The launcher with a scripted mpirun: signals, exit codes, filtered and forwarded output.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/scratch.h"
#include "trainer/commands/restart_planner.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/job_directory.h"
#include "trainer/job/launch_limits.h"
#include "trainer/job/launcher.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/mpirun_job.h"
#include "trainer/job/mpirun_output.h"
#include "trainer/job/output_relay.h"
#include "trainer/job/process_state.h"
#include "trainer/job/stop_signals.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/watch.h"

namespace fs = std::filesystem;
using namespace trireme;
using test::ScopedVariable;
using test::Scratch;

namespace {

struct Launched {
  int code = 0;
  std::string errors;  ///< standard error
};

/// Like main() of the product, before any thread is started: a thread that does not block signals would end the process in these tests.
const bool kSignalThreadFirst = (start_signal_thread(), true);

/// The first line of a script that replaces mpirun and its ranks.
const std::string kStart = concat("printf '", kStartedLine, "\\n' >&2\n");

/// Calls launch() with a shell script as mpirun and captures standard error.
Launched launch_script(const std::string& script, const LaunchOptions& options = {}, const std::string& start = kStart) {
  std::string name = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  const fs::path directory = name, mpirun = directory / "mpirun", caught = directory / "stderr";
  std::ofstream(mpirun) << "#!/bin/sh\n" << start << script;
  fs::permissions(mpirun, fs::perms::owner_all);
  const ScopedVariable path("PATH", (directory.string() + ":/usr/bin:/bin").c_str());
  const int saved = ::dup(STDERR_FILENO);
  const int file = ::open(caught.c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDERR_FILENO);
  Launched result;
  result.code = launch(read_launch_environment(), 4, {"train", "two words"}, options);
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  ::close(file);
  result.errors = read_text(caught);
  fs::remove_all(directory);
  return result;
}

/// Forks a child whose exit code is the return value of `body`.
template <class F>
pid_t fork_for(F&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

int code_of(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const std::string kFrame(74, '-');
const std::string kEpilogue =
    kFrame + "\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n" +
    kFrame + "\n" + kFrame + "\nmpirun detected that one or more processes exited with non-zero status\n  Exit code:    75\n" + kFrame + "\n";

}  // namespace

TEST_CASE("launcher: mpirun's notices are separated from the ranks' output, wherever reads split it", "[launcher]") {
  const std::string stream =
      "first\n" + kEpilogue +
      "mpirun: Forwarding signal 10 to job\nmpirun.openmpi: Forwarding signal 12 to job\n[n1:01234] 3 more processes have sent help message "
      "help-mpi-api.txt / mpi-abort\n" +
      "[warn] Epoll MOD(1) on fd 30 failed. Old events were 6; close change was 0 (none): Bad file descriptor\n"
      "[n1:01234] [[11490,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file ../../../orte/util/show_help.c at line 501\n"
      "[n1:01234] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n" +
      std::string(kReadyLine) + "\n--- not a frame ---\n[a.yaml] is the ranks' own\nlast, unfinished";
  for (size_t chunk : {size_t{1}, size_t{7}, stream.size()}) {
    MpirunOutputFilter filter;
    std::string own;
    for (size_t at = 0; at < stream.size(); at += chunk) own += filter.feed(std::string_view(stream).substr(at, chunk));
    own += filter.finish();
    CHECK(own == "first\n--- not a frame ---\n[a.yaml] is the ranks' own\nlast, unfinished");
    CHECK(filter.ready());
    CHECK(filter.started());
    CHECK(filter.notices().find("Exit code:    75\n") != std::string::npos);
    CHECK(filter.notices().find("---") == std::string::npos);
  }
  MpirunOutputFilter filter;
  CHECK(filter.feed("a whole line at once\n") == "a whole line at once\n");
  CHECK_FALSE(filter.ready());
}

TEST_CASE("launcher: announcements are recognised after Open MPI's tags and incomplete lines", "[launcher]") {
  for (const char* tag : {"", "[1,0]<stderr>:", "Sun Nov 22 18:00:00 2026<stderr>:"}) {
    MpirunOutputFilter filter;
    CHECK(filter.feed(concat(tag, kStartedLine, "\n")).empty());
    CHECK((filter.started() && !filter.ready()));
    CHECK(filter.feed(concat(tag, kReadyLine, "\n")).empty());
    CHECK(filter.ready());
  }
  MpirunOutputFilter filter;
  CHECK(filter.feed(concat("no end of line", kReadyLine, "\nnext\n")) == "no end of line\nnext\n");
  CHECK(filter.ready());
}

TEST_CASE("launcher: which rank ended first is read from mpirun's notices", "[launcher]") {
  const auto first_exit_notice = [](const std::string& notice) {
    MpirunOutputFilter filter;
    CHECK(filter.feed(kFrame + "\n" + notice + "\n" + kFrame + "\n").empty());
    return filter.first_exit_notice();
  };
  CHECK(first_exit_notice("mpirun noticed that process rank 12 with PID 0 on node vm exited on signal 9 (Killed).") ==
        "rank 12 ended first, by signal 9 (Killed)");
  const std::string by_code =
      "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first "
      "process to do so was:\n\n  Process name: [[46013,1],2]\n  Exit code:    ";
  CHECK(first_exit_notice(by_code + "1") == "rank 2 ended first, with exit code 1");
  CHECK(first_exit_notice(by_code + "70").empty());  // as every rank that was ordered to exit
  CHECK(first_exit_notice("mpirun has exited due to process rank 0 with PID 0 on\nnode vm exiting improperly.") ==
        "rank 0 ended first, without reporting an error");
  CHECK(first_exit_notice("Primary job  terminated normally").empty());

  // Open MPI 5
  CHECK(first_exit_notice("prterun noticed that process rank 1 with PID 23695 on node vm exited on\nsignal 9 (Killed).") ==
        "rank 1 ended first, by signal 9 (Killed)");
  CHECK(first_exit_notice("The first process to do so was:\n\n   Process name: [prterun-vm-23701@1,3]\n   Exit code:    64\n") ==
        "rank 3 ended first, with exit code 64");
  CHECK(first_exit_notice("prterun has exited due to process rank 1 with PID 0 on node vm exiting\nimproperly.") ==
        "rank 1 ended first, without reporting an error");
  CHECK(first_exit_notice("prterun has exited due to process rank 1 with PID 0 on node vm calling\n\"abort\".").empty());
}

TEST_CASE("launcher: of two errors that several ranks report each is passed on once, and of two notices the first counts", "[launcher]") {
  MpirunOutputFilter filter;
  CHECK(filter.feed("rank 0: no space on a\nrank 11: no space on a\nrank 2: no space on b\nrank 12: no space on b\nrank 3: no space on a\n"
                    "rank 4 is ready\nrank 4 is ready\nrank : no number\nrank : no number\n") ==
        "rank 0: no space on a\nrank 2: no space on b\nrank 4 is ready\nrank 4 is ready\nrank : no number\nrank : no number\n");
  CHECK(filter.first_rank() == -1);
  for (const char* notice :
       {"process rank 12 with PID 0 on node n2 exited on signal 9 (Killed).", "process rank 3 with PID 0 on node n1 exited on signal 11."})
    CHECK(filter.feed(concat(kFrame, "\nmpirun noticed that ", notice, "\n", kFrame, "\n")).empty());
  CHECK(filter.first_exit_notice() == "rank 12 ended first, by signal 9 (Killed)");
  CHECK(filter.first_rank() == 12);
  CHECK(filter.notices() ==
        "mpirun noticed that process rank 12 with PID 0 on node n2 exited on signal 9 (Killed).\n"
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 11.\n");
}

TEST_CASE("launcher: MPICH's line about MPI_Abort is not an error of a rank", "[launcher]") {
  MpirunOutputFilter filter;
  CHECK(filter.feed("rank 1: no\nAbort(65) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 65) - process 1\n") ==
        "rank 1: no\n");
  CHECK(filter.feed("Abort(65) of a rank's own\n") == "Abort(65) of a rank's own\n");
}

TEST_CASE("launcher: the ranks' exit code and output are passed on, mpirun's epilogue is not", "[launcher]") {
  for (int code : {0, 64, 65, 66, 70, 74, 75}) {
    const Launched result = launch_script(concat("cat >&2 <<END\nours\n", kEpilogue, "END\nexit ", code, "\n"));
    CHECK(result.code == code);
    CHECK(result.errors == "ours\n");
  }
  const Launched crash = launch_script(concat("cat >&2 <<END\n", kEpilogue, "END\nexit 139\n"));
  CHECK(crash.code == 70);
  CHECK(crash.errors.find("Primary job") != std::string::npos);
  const Launched silent = launch_script("kill -9 $$\n");
  CHECK(silent.code == 70);
  CHECK(silent.errors == "mpirun was killed by signal 9\n");
}

/// A shell cannot trap a signal that was ignored when it started, and mpirun is started with SIGUSR1 ignored.
const std::string kTrapUsr1 = "[ -n \"$again\" ] || exec env --default-signal=USR1 again=1 \"$0\" \"$@\"\ntrap 'exit 75' USR1\n";
const std::string kReady = concat("printf '", kReadyLine, "\\n' >&2\n");
const std::string kWait = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; done; exit 64\n";

TEST_CASE("launcher: exit code 1 is a result for commands with findings, once a rank has run, and a failure otherwise", "[launcher]") {
  const LaunchOptions finds{.has_findings = true};
  CHECK(launch_script("exit 1\n", finds).code == 1);
  CHECK(launch_script("exit 1\n", finds).errors.empty());
  CHECK(launch_script("exit 1\n").code == 70);
  CHECK(launch_script("echo mpirun: no host >&2; exit 1\n", finds, "").code == 70);  // of mpirun, which has started no rank
}

TEST_CASE("launcher: a stop request is forwarded to mpirun as SIGUSR1 once the ranks are ready", "[launcher]") {
  for (const char* name : {"TERM", "INT", "USR1", "HUP"}) {
    CAPTURE(name);
    const Launched result = launch_script(concat(kTrapUsr1, "trap 'exit 65' TERM INT HUP\n", kReady, "sleep 0.2; kill -", name, " $PPID\n", kWait));
    CHECK(result.code == 75);
    CHECK(result.errors.empty());
  }
}

TEST_CASE("launcher: a stop request before the ranks are ready ends the job without waiting for them", "[launcher]") {
  for (const char* name : {"TERM", "INT", "USR1"}) {
    CAPTURE(name);
    const auto begin = std::chrono::steady_clock::now();
    const Launched result = launch_script(concat("kill -", name, " $PPID\n", kWait));
    CHECK(result.code == 75);
    CHECK(result.errors == "stopped on request before the first step; rerun the same command to resume\n");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(4));
  }
}

TEST_CASE("launcher: a second stop request ends the job immediately, even if mpirun ignores it", "[launcher]") {
  const std::string heedless = concat("trap '' HUP USR1\n", kReady, "sleep 0.2\n");
  const std::string interrupted = "kill -INT $PPID; sleep 0.5; kill -INT $PPID\n", terminated = "kill -TERM $PPID; sleep 1.1; kill -TERM $PPID\n";
  for (const std::string& requests : {interrupted, terminated}) {
    const Launched result = launch_script(concat(heedless, requests, kWait));
    CHECK(result.code == 70);
    CHECK(result.errors == "ended immediately by a second stop request; unsaved progress is lost\n");
  }
  // An exit code of the ranks takes precedence, even after a second request.
  const Launched saved = launch_script(concat("trap 'exit 75' HUP\n", kReady, "sleep 0.2; kill -INT $PPID; sleep 0.5; kill -INT $PPID\n", kWait));
  CHECK(saved.code == 75);
  CHECK(saved.errors.empty());
  // A scheduler may send SIGTERM twice in a row.
  const Launched twice =
      launch_script(concat(kTrapUsr1, kReady, "sleep 0.2; trap 'sleep 0.5; exit 75' USR1; kill -TERM $PPID; kill -TERM $PPID\n", kWait));
  CHECK(twice.code == 75);
}

TEST_CASE("launcher: SIGUSR2 is forwarded to mpirun once the ranks are ready, and the job continues", "[launcher]") {
  const std::string trap = "[ -n \"$again\" ] || exec env --default-signal=USR2 again=1 \"$0\" \"$@\"\ntrap 'echo asked >&2' USR2\n";
  const std::string wait = "sleep 0.2 & wait; sleep 0.7 & wait; sleep 0.2; exit 0\n";  // a signal ends `wait`
  const Launched ready = launch_script(concat(trap, kReady, "sleep 0.2; kill -USR2 $PPID\n", wait));
  CHECK(ready.code == 0);
  CHECK(ready.errors == "asked\n");
  const Launched early =
      launch_script(concat(trap, "trap 'echo early >&2' USR2\nkill -USR2 $PPID; sleep 0.7\ntrap 'echo asked >&2' USR2\n", kReady, wait));
  CHECK(early.code == 0);
  CHECK(early.errors == "asked\n");
  CHECK(launch_script("kill -USR2 $PPID; sleep 0.2; exit 0\n").code == 0);  // a job that never becomes ready
}

TEST_CASE("launcher: mpirun starts with SIGTERM and SIGINT blocked, and SIGUSR1 and SIGUSR2 ignored", "[launcher]") {
  // Built-ins only: a shell unblocks signals when it starts another program.
  const Launched result =
      launch_script("while read -r name value; do case $name in SigBlk: | SigIgn:) echo $value >&2 ;; esac; done < /proc/$$/status\nexit 75\n");
  CHECK(result.code == 75);
  uint64_t blocked = 0, ignored = 0;
  std::istringstream(result.errors) >> std::hex >> blocked >> ignored;
  const auto has = [](uint64_t set, int signal) { return (set >> (signal - 1) & 1) != 0; };
  CHECK((has(blocked, SIGTERM) && has(blocked, SIGINT)));
  CHECK_FALSE((has(blocked, SIGHUP) || has(blocked, SIGUSR1) || has(blocked, SIGALRM)));
  CHECK((has(ignored, SIGUSR1) && has(ignored, SIGUSR2)));
  CHECK_FALSE(has(ignored, SIGHUP));
}

TEST_CASE("launcher: a stop request after the end of a job does not end the launcher", "[launcher]") {
  CHECK(launch_script("(sleep 0.1; kill -TERM $PPID) & exit 0\n").code == 0);
  ::kill(::getpid(), SIGTERM);
  ::poll(nullptr, 0, 300);
}

/// Replaces standard output by a pipe for a scope.
class OutputPipe {
 public:
  OutputPipe() : before_(::dup(STDOUT_FILENO)) {
    REQUIRE(::pipe2(pipe_.data(), O_CLOEXEC) == 0);
    ::dup2(pipe_[1], STDOUT_FILENO);
    ::close(pipe_[1]);
  }
  ~OutputPipe() {
    close_reader();
    ::dup2(before_, STDOUT_FILENO);
    ::close(before_);
  }
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;
  void close_reader() {
    if (pipe_[0] >= 0) ::close(std::exchange(pipe_[0], -1));
  }

 private:
  int before_;
  std::array<int, 2> pipe_{};
};

TEST_CASE("launcher: a job continues if its log is not read", "[launcher]") {
  const std::string script = "yes 'a line of the log' | head -c 20000000; exit 75\n";
  const LaunchOptions log{.output_is_log = true};
  {
    OutputPipe pipe;
    pipe.close_reader();
    CHECK(launch_script(script, log).code == 75);
  }
  const OutputPipe paused;
  // The unread rest is dropped after ten seconds, or after one if a stop was requested.
  CHECK(launch_script(concat(kTrapUsr1, kReady, "trap '' USR1; kill -TERM $PPID\n", script), log).code == 75);
}

TEST_CASE("output relay: unread output is dropped in complete lines and counted", "[launcher]") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  OutputRelay relay(pipe[1], OutputRelay::Kind::kLog, 10000);
  const auto write_all = [&] {
    std::string out;
    std::array<char, 65536> bytes;
    for (ssize_t count = 1; count > 0 || relay.pending();) {
      relay.write_some();
      if ((count = ::read(pipe[0], bytes.data(), bytes.size())) > 0) out.append(bytes.data(), static_cast<size_t>(count));
    }
    return out;
  };
  relay.add("unfinished");
  relay.add(" line\n");
  CHECK(write_all() == "unfinished line\n");
  std::string all;
  for (int i = 0; i < 3000; ++i) all += concat("line ", i, i % 2 == 0 ? "\n" : "\r");
  for (size_t at = 0; at < all.size(); at += 7) relay.add(std::string_view(all).substr(at, 7));
  std::string taken = write_all();
  CHECK(taken.size() <= 10000);
  CHECK(all.starts_with(taken));
  CHECK((taken.ends_with('\n') || taken.ends_with('\r')));
  const auto lines = std::ranges::count_if(taken, [](char c) { return c == '\n' || c == '\r'; });
  relay.add("after\n");
  CHECK(write_all() == concat("[", 3000 - lines, " lines were dropped here: the output was not read in time]\nafter\n"));
  // Until all that was kept has been read, further lines are dropped, too, so that one report names them all.
  const auto page = static_cast<int>(::sysconf(_SC_PAGESIZE));
  REQUIRE(::fcntl(pipe[1], F_SETPIPE_SZ, page) == page);
  relay.add(all);
  relay.write_some();
  relay.add("early\n");
  taken = write_all();
  CHECK(all.starts_with(taken));
  const auto kept = std::ranges::count_if(taken, [](char c) { return c == '\n' || c == '\r'; });
  relay.add("late\n");
  CHECK(write_all() == concat("[", 3001 - kept, " lines were dropped here: the output was not read in time]\nlate\n"));
  relay.add(all);
  relay.finish(std::chrono::milliseconds(100));
  taken = write_all();
  CHECK(taken.ends_with(" lines were dropped here: the output was not read in time]\n"));

  ::close(pipe[0]);
  ignore_closed_output();
  relay.add("nobody\n");
  relay.write_some();
  CHECK_FALSE(relay.pending());
  relay.add("nobody\n");
  CHECK_FALSE(relay.pending());
  ::close(pipe[1]);
}

TEST_CASE("output relay: two gaps are counted apart, and what is written between them is whole", "[launcher]") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  OutputRelay relay(pipe[1], OutputRelay::Kind::kLog, 20);
  for (const char* line : {"the first line\n", "dropped\n", "dropped\r", "short\n"}) relay.add(line);
  relay.write_some();
  relay.add("the second line\n");
  while (relay.pending()) relay.write_some();
  relay.add("the third line\n");
  relay.add("dropped in");
  relay.add(" two parts\n");
  relay.finish(std::chrono::milliseconds(100));
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(pipe[0], bytes.data(), bytes.size());
  REQUIRE(count > 0);
  CHECK(std::string(bytes.data(), static_cast<size_t>(count)) ==
        "the first line\n[3 lines were dropped here: the output was not read in time]\nthe second line\nthe third line\n"
        "[1 line was dropped here: the output was not read in time]\n");
  for (const int end : pipe) ::close(end);
}

TEST_CASE("launcher: the command and environment of the ranks", "[launcher]") {
  const ScopedVariable threads("OMP_NUM_THREADS", nullptr), yield("OMPI_MCA_mpi_yield_when_idle", nullptr), nodes("SLURM_JOB_NUM_NODES", nullptr),
      pml("OMPI_MCA_pml", "cm"), btl("OMPI_MCA_btl", nullptr), root("OMPI_ALLOW_RUN_AS_ROOT", nullptr);
  const std::string show = "{ echo \"$# $1 $2 $4 [$5]\"; echo $OMP_NUM_THREADS $OMPI_MCA_pml $OMPI_MCA_btl $OMPI_ALLOW_RUN_AS_ROOT; } >&2\n";
  const Launched result = launch_script(show);
  CHECK(result.errors.find("5 -n 4 train [two words]\n") == 0);
  CHECK(result.errors.find(" cm vader,self 1\n") != std::string::npos);
  CHECK(result.errors.find("\n0 ") == std::string::npos);  // at least one thread
  {
    const std::string show_policy = "echo $OMP_WAIT_POLICY/$GOMP_SPINCOUNT >&2\n";
    const ScopedVariable few("OMP_NUM_THREADS", nullptr), none("OMP_WAIT_POLICY", nullptr), no_count("GOMP_SPINCOUNT", nullptr);
    CHECK(launch_script(show_policy).errors == (usable_cores() < 4 ? "passive/\n" : "/1000\n"));  // four ranks
    ::unsetenv("OMP_WAIT_POLICY");
    const ScopedVariable chosen("GOMP_SPINCOUNT", "77");
    CHECK(launch_script(show_policy).errors == "/77\n");
  }
  {
    const ScopedVariable many("OMP_NUM_THREADS", "4096"), policy("OMP_WAIT_POLICY", nullptr), count("GOMP_SPINCOUNT", nullptr);
    CHECK(launch_script("echo $OMP_WAIT_POLICY >&2\n").errors == "passive\n");  // more threads than cores
    const ScopedVariable wanted("OMP_WAIT_POLICY", "active");
    CHECK(launch_script("echo $OMP_WAIT_POLICY >&2\n").errors == "active\n");
  }

  const fs::path hosts = fs::temp_directory_path() / concat("trireme-hosts-", ::getpid());
  std::ofstream(hosts) << "# two nodes\nn1 slots=2\n\nn2 slots=2\n";
  const Launched remote = launch_script("echo \"$*\" >&2\n", {.hosts_file = hosts.string()});
  CHECK(remote.errors.find("-n 4 --hostfile " + hosts.string() + " -x OMP_NUM_THREADS -x ") == 0);
  {
    const ScopedVariable allocation("SLURM_JOB_NUM_NODES", "2");  // mpirun knows the nodes of the allocation
    CHECK(launch_script("echo \"$*\" >&2\n").errors.starts_with("-n 4 -x OMP_NUM_THREADS -x "));
  }
  std::ofstream(hosts) << "# none\n";
  CHECK_THROWS_AS(launch(read_launch_environment(), 4, {}, {.hosts_file = hosts.string()}), ConfigError);
  fs::remove(hosts);
  CHECK_THROWS_AS(launch(read_launch_environment(), 4, {}, {.hosts_file = hosts.string()}), MissingFileError);
}

TEST_CASE("launcher: Open MPI 5 is told in PRTE's variables what Open MPI 4 is told in its own", "[launcher]") {
  const ScopedVariable policy("PRTE_MCA_rmaps_default_mapping_policy", nullptr), binding("PRTE_MCA_hwloc_default_binding_policy", nullptr),
      root("PRTE_ALLOW_RUN_AS_ROOT", nullptr), confirm("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "0"), interface("PMIX_MCA_ptl_base_if_include", nullptr);
  const std::string show =
      "echo $PRTE_MCA_rmaps_default_mapping_policy $PRTE_MCA_hwloc_default_binding_policy $PMIX_MCA_ptl_base_if_include >&2\n"
      "echo $PRTE_ALLOW_RUN_AS_ROOT $PRTE_ALLOW_RUN_AS_ROOT_CONFIRM $OMPI_MCA_rmaps_base_oversubscribe >&2\n";
  CHECK(launch_script(show).errors.starts_with(":oversubscribe none lo\n1 0 1\n"));
}

TEST_CASE("launcher: the mpirun of the program's own MPI library is taken, with its options", "[launcher]") {
  CHECK(mpirun_kind("Open MPI v5.0.7") == MpirunKind::kOpenMpi);
  CHECK(mpirun_kind("MPICH Version: 4.0") == MpirunKind::kHydra);
  CHECK(mpirun_kind("Intel(R) MPI Library 2021.6 for Linux* OS") == MpirunKind::kHydra);

  std::string place = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(place.data()) != nullptr);
  const LaunchEnvironment environment{.search_path = "/nowhere:" + place};
  CHECK_THROWS_WITH(find_mpirun(environment, MpirunKind::kHydra), Catch::Matchers::Contains("apt install mpich"));
  for (const char* name : {"mpirun", "mpirun.mpich"}) {
    fs::copy_file("/bin/true", fs::path(place) / name);
    CHECK(find_mpirun(environment, MpirunKind::kHydra) == fs::path(place) / name);
    CHECK(find_mpirun(environment, MpirunKind::kOpenMpi) == fs::path(place) / "mpirun");
  }
  const std::vector<std::string> hydra = mpirun_command(environment, 4, {"train"}, "hosts", false, MpirunKind::kHydra);
  REQUIRE(hydra.size() == 7);  // Hydra passes the whole environment to all hosts
  CHECK((hydra[1] == "-n" && hydra[2] == "4" && hydra[3] == "-f" && hydra[4] == "hosts" && hydra[6] == "train"));
  fs::remove_all(place);
}

TEST_CASE("launcher: ranks on other hosts get the variables of CUDA, NCCL and the network libraries", "[launcher]") {
  const ScopedVariable forwarded[] = {
      {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}, {"NCCL_SOCKET_IFNAME", "eth0"}, {"FI_PROVIDER", "efa"}, {"UCX_NET_DEVICES", "mlx5_0:1"}, {"UCX_TLS", ""},
      {"OMP_WAIT_POLICY", "passive"}};
  const ScopedVariable own[] = {{"TRIREME_NOT_FORWARDED", "1"}, {"XFI_PROVIDER", "1"}};
  const auto forwards = [](const std::string& name) {
    const std::vector<std::string> command = mpirun_command(read_launch_environment(), 4, {"train"}, "hosts", false, MpirunKind::kOpenMpi);
    const auto at = std::ranges::find(command, name);
    return at != command.end() && at != command.begin() && *(at - 1) == "-x";
  };
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "UCX_NET_DEVICES", "UCX_TLS", "OMP_WAIT_POLICY"}) {
    INFO(name);
    CHECK(forwards(name));
  }
  CHECK_FALSE(forwards("TRIREME_NOT_FORWARDED"));
  CHECK_FALSE(forwards("XFI_PROVIDER"));
  const char* const kVisible = "CUDA_VISIBLE_DEVICES";
  for (const auto& [value, everywhere] :
       std::map<const char*, bool>{{"0,1", true}, {"", true}, {"GPU-8932f937,GPU-0000", false}, {"MIG-1a2b", false}}) {
    INFO(value);
    const ScopedVariable visible(kVisible, value);
    CHECK(forwards(kVisible) == everywhere);  // a UUID exists on one host only
  }
}

TEST_CASE("launcher: a failed job is restarted with the arguments of its continuation, any other is not", "[launcher]") {
  // Prints its arguments and exits with the next of the codes.
  const auto script = [](const std::string& codes) {
    return concat("echo \"$4\" >&2; count=$(dirname $0)/count; echo >> $count; set -- ", codes, "; shift $(($(wc -l < $count) - 1)); exit $1\n");
  };
  LaunchOptions options;
  options.restarts = 3;
  int64_t asked = 0;
  options.continuation = [&asked] {
    ++asked;
    return Continuation{{concat("again", asked)}, asked, concat("step ", asked)};
  };
  const Launched recovered = launch_script(script("139 70 0"), options);
  CHECK(recovered.code == 0);
  CHECK(recovered.errors == "train\nmpirun exited with code 139\nrestart 1 of 3, from step 1\nagain1\nrestart 2 of 3, from step 2\nagain2\n");
  for (const char* answer : {"64", "65", "66", "74", "75"}) {
    const Launched answered = launch_script(script(answer), options);
    CHECK(std::to_string(answered.code) == answer);
    CHECK(answered.errors == "train\n");
  }
  CHECK(launch_script(script("70 70 70 70 0"), options).errors.find("again5\ngiving up: all 3 restarts are used up\n") != std::string::npos);
  options.continuation = [] { return Continuation{{"again"}, 0, "the start"}; };
  const Launched slow_to_start = launch_script(script("1 1 0"), options);  // no step has begun, so no step has failed twice
  CHECK(slow_to_start.code == 0);
  CHECK(slow_to_start.errors.find("restart 2 of 3 in 1 s, from the start\n") != std::string::npos);
  const Launched asked_to_stop = launch_script("kill -TERM $PPID; sleep 0.2; exit 70\n", options);
  CHECK(asked_to_stop.code == 75);
  CHECK(asked_to_stop.errors.find("restart") == std::string::npos);
}

TEST_CASE("launcher: what is said about five failures, with and without a new checkpoint, and about a step that fails twice", "[launcher]") {
  const std::string script =
      concat("count=$(dirname $0)/count; echo >> $count; n=$(wc -l < $count); for rank in 0 1; do echo \"rank $rank: failure $n of $4\" >&2; done\n",
             "case $n in 2) exit 139;; 4) kill -9 $$;; *) exit 70;; esac\n");
  LaunchOptions options;
  options.restarts = 4;
  int64_t asked = 0;
  options.continuation = [&asked] {  // only the third job has saved
    ++asked;
    const int64_t saved = asked < 3 ? 5 : 8;
    return Continuation{{concat("job", asked + 1)}, saved, concat("step ", saved), 10 + asked};
  };
  const Launched five = launch_script(script, options);
  CHECK(five.code == 70);
  CHECK(five.errors ==
        "rank 0: failure 1 of train\nrestart 1 of 4, from step 5\n"
        "rank 0: failure 2 of job2\nmpirun exited with code 139\nrestart 2 of 4 in 1 s, from step 5\n"
        "rank 0: failure 3 of job3\nrestart 3 of 4, from step 8\n"
        "rank 0: failure 4 of job4\nmpirun was killed by signal 9\nrestart 4 of 4 in 1 s, from step 8\n"
        "rank 0: failure 5 of job5\ngiving up: all 4 restarts are used up\n");
  options.continuation = [&asked] { return Continuation{{"again"}, 5, "step 5", ++asked < 7 ? 8 : 9}; };
  const Launched twice = launch_script("exit 70\n", options);  // in step 9, then twice in step 10
  CHECK(twice.errors ==
        "restart 1 of 4, from step 5\nrestart 2 of 4 in 1 s, from step 5\n"
        "giving up: step 10 has failed twice in a row, with no new checkpoint in between\n");
}

TEST_CASE("launcher: a restarted job has a launch time of its own", "[launcher]") {
  LaunchOptions options;
  options.restarts = 1;
  options.continuation = [] { return Continuation{{"again"}, 1, "step 1"}; };
  const Launched restarted = launch_script(concat("echo $", kTimesVariable, " >&2; sleep 0.05; [ $4 = again ] || exit 70\n"), options);
  CHECK(restarted.code == 0);
  INFO(restarted.errors);
  std::istringstream lines(restarted.errors);
  std::string first, said, second;
  REQUIRE((std::getline(lines, first) && std::getline(lines, said) && std::getline(lines, second)));
  CHECK(said == "restart 1 of 1, from step 1");
  const auto times = [](const std::string& text) {  // of the launcher and the job, in milliseconds
    std::pair<int64_t, int64_t> found;
    std::istringstream(text) >> found.first >> found.second;
    return found;
  };
  CHECK(times(first).first > 0);
  CHECK(times(first).second == times(first).first);
  CHECK(times(second).first == times(first).first);
  CHECK(times(second).second >= times(first).second + 50);
}

TEST_CASE("launcher: hosts that cannot be reached are left out, and the job continues with fewer ranks", "[launcher]") {
  const fs::path hosts = fs::temp_directory_path() / concat("trireme-hosts-", ::getpid());
  std::ofstream(hosts) << "a slots=2\nb slots=2\n";
  // Answers probes of hosts, but not of the host c; prints number of ranks and hosts; runs into the next of the deeds.
  const std::string script = concat(
      "directory=$(dirname $0); for word; do test \"$word\" = --hostfile && wants=1 && continue; test \"$wants\" = 1 && file=$word; wants=0; done\n",
      "for last; do :; done; if [ \"$last\" = true ]; then ! grep -q c \"$file\"; exit; fi\n",
      "echo \"$2 ranks on\" $(cut -d' ' -f1 \"$file\") >&2; count=$directory/count; echo >> $count; case $(wc -l < $count) in\n");
  LaunchOptions options{.hosts_file = hosts.string()};
  options.restarts = 9;
  options.worlds = {4, 3, 2};
  options.host_strikes = 1;
  options.host_wait_seconds = 0;
  int64_t saved = 0;
  options.continuation = [&saved] { return Continuation{{"train"}, ++saved, concat("step ", saved)}; };
  // Without a verdict nobody is to blame.
  const Launched unknown = launch_script(script + "1) exit 70;; *) exit 0;; esac\n", options);
  CHECK(unknown.code == 0);
  CHECK(unknown.errors == "4 ranks on a b\nrestart 1 of 9, from step 1\n4 ranks on a b\n");

  std::ofstream(hosts) << "a slots=2\nc slots=2\n";
  const Launched lost = launch_script(script + "1) exit 70;; *) exit 0;; esac\n", options);
  CHECK(lost.code == 0);
  CHECK(lost.errors == "4 ranks on a c\nrestart 1 of 9, from step 2\nusing 2 of 4 ranks on 1 host, without c (not reachable)\n2 ranks on a\n");
  std::ofstream(hosts) << "c slots=2\nc1 slots=2\n";
  const Launched none = launch_script(script + "1) exit 70;; *) exit 0;; esac\n", options);
  CHECK(none.code == 70);
  CHECK(none.errors.find("giving up: the hosts that can be reached have no room for 2 ranks\n") != std::string::npos);
  fs::remove(hosts);
}

TEST_CASE("launcher: a job whose continuation gives a no_retry_reason is not restarted", "[launcher]") {
  LaunchOptions options;
  options.restarts = 3;
  options.continuation = [] { return Continuation{{"again"}, 7, "step 7", 9, "it has diverged"}; };
  const Launched given_up = launch_script("echo \"$4\" >&2; exit 70\n", options);
  CHECK(given_up.code == 70);
  CHECK(given_up.errors == "train\ngiving up: it has diverged\n");
}

TEST_CASE("launcher: the next job starts only after the ranks of a killed mpirun have ended", "[launcher]") {
  LaunchOptions options;
  options.restarts = 1;
  options.continuation = [] { return Continuation{{"again"}, 0, "the start"}; };
  // The first job ends one second before its child, and after the launcher has seen the child.
  const Launched result = launch_script("[ $4 = again ] && { [ -e $0.gone ]; exit; }\n(sleep 3; touch $0.gone) & sleep 2; kill -9 $$\n", options);
  CHECK(result.code == 0);
  CHECK(result.errors == "mpirun was killed by signal 9\nrestart 1 of 1, from the start\n");
}

TEST_CASE("launcher: progress is read from the complete lines of metrics.jsonl", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  RestartPlanner restart_planner(run, "auto", {"train", "run.yaml"});
  std::ofstream(fs::path(run) / "metrics.jsonl") << "{\"step\":12,\"loss\":1}\n{\"step\":1";
  CHECK(restart_planner().done == 12);
  fs::remove_all(run);
}

TEST_CASE("launcher: progress is found before lines of any length, and the middle of a line is not a line", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  const fs::path metrics = fs::path(run) / "metrics.jsonl";
  auto time = fs::file_time_type::clock::now();
  for (const size_t length : {size_t{65'000}, size_t{65'536}, size_t{70'000}, size_t{300'000}, size_t{5'000'000}}) {
    CAPTURE(length);
    RestartPlanner restart_planner(run, "auto", {"train", "run.yaml"});
    std::ofstream(metrics) << "{\"event\":\"start\",\"step\":0}\n{\"step\":40,\"loss\":1}\n{\"step\":41,\"loss\":1}\n"
                           << "{\"event\":\"ranks\",\"step_seconds\":[" << std::string(length, '1') << "]}\n";
    fs::last_write_time(metrics, time += std::chrono::seconds(1));
    const Continuation next = restart_planner();
    CHECK(next.done == 41);
    CHECK(next.no_retry_reason.empty());
    std::ofstream(metrics, std::ios::app) << "{\"event\":\"diverged\",\"rejected_steps\":20}\n";
    fs::last_write_time(metrics, time += std::chrono::seconds(1));
    CHECK(restart_planner().no_retry_reason == "the run diverged and would diverge again");
  }
  // The last 64 KiB begin inside a string that looks like a step.
  RestartPlanner restart_planner(run, "auto", {"train", "run.yaml"});
  const std::string looks = "{\"step\":99,\"loss\":1}", rest = std::string((1 << 16) - looks.size() - 4, '.') + "\"}]\n";
  std::ofstream(metrics) << "{\"step\":7,\"loss\":1}\n[{\"event\":\"" << looks << rest;
  fs::last_write_time(metrics, time += std::chrono::seconds(1));
  CHECK(restart_planner().done == 7);
  fs::remove_all(run);
}

TEST_CASE("launcher: a diverged job is not restarted, the job after it is", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  const fs::path metrics = fs::path(run) / "metrics.jsonl";
  RestartPlanner restart_planner(run, "auto", {"train", "run.yaml"});
  std::ofstream(metrics) << "{\"event\":\"start\",\"step\":0}\n{\"step\":21,\"loss\":null}\n{\"event\":\"diverged\",\"rejected_steps\":20}\n";
  CHECK(restart_planner().no_retry_reason == "the run diverged and would diverge again");
  CHECK(restart_planner().no_retry_reason.empty());  // metrics.jsonl is unchanged: the next job failed before training
  std::ofstream(metrics, std::ios::app) << "{\"event\":\"start\",\"step\":0}\n{\"step\":22,\"loss\":1}\n";
  fs::last_write_time(metrics, fs::last_write_time(metrics) + std::chrono::seconds(1));
  CHECK(restart_planner().no_retry_reason.empty());
  std::ofstream(metrics, std::ios::app) << "{\"event\":\"anomaly_stop\",\"before_step\":23}\n";
  fs::last_write_time(metrics, fs::last_write_time(metrics) + std::chrono::seconds(2));
  CHECK(restart_planner().no_retry_reason == "the run stopped at an anomalous step and would stop there again");
  fs::remove_all(run);
}

TEST_CASE("launcher: a job started with --resume never next to old metrics is restarted from its own checkpoints", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  const fs::path metrics = fs::path(run) / "metrics.jsonl";
  std::ofstream(metrics) << "{\"step\":12,\"loss\":1}\n";
  RestartPlanner restart_planner(run, "never", {"train", "--resume", "never", "run.yaml"});
  using Words = std::vector<std::string>;
  CHECK(restart_planner().arguments == Words{"train", "--resume", "never", "run.yaml"});  // failed before training
  std::ofstream(metrics) << "{\"step\":1,\"loss\":1}\n";
  fs::last_write_time(metrics, fs::last_write_time(metrics) + std::chrono::seconds(1));
  CHECK(restart_planner().arguments == Words{"train", "--resume", "auto", "run.yaml"});
  fs::remove_all(run);
}

TEST_CASE("launcher: job directories are not removed while being created", "[launcher]") {
  constexpr const char* kPlace = "OMPI_MCA_btl_vader_backing_directory";
  const ScopedVariable unset(kPlace, nullptr);
  std::vector<pid_t> processes;
  for (int n = 0; n < 6; ++n)
    processes.push_back(fork_for([] {
      for (int made = 0; made < 500; ++made) {
        const JobDirectory directory(read_launch_environment(), true);
        const char* place = std::getenv(kPlace);
        if (place != nullptr && !fs::exists(place)) return 1;
      }
      return 0;
    }));
  for (const pid_t process : processes) CHECK(code_of(process) == 0);
}

TEST_CASE("launcher: shared memory that would not fit is below TMPDIR, and a note says so", "[launcher]") {
  constexpr const char* kPlace = "OMPI_MCA_btl_vader_backing_directory";
  const ScopedVariable unset(kPlace, nullptr), session("OMPI_MCA_orte_tmpdir_base", nullptr), temporary("TMPDIR", "/var/tmp");
  const auto place = [] { return fs::path(std::getenv(kPlace)).parent_path(); };
  {
    const JobDirectory fits(read_launch_environment(), true, 1);
    CHECK(place() == "/dev/shm");
    CHECK(fits.note().empty());
  }
  {
    const JobDirectory too_many(read_launch_environment(), true, 1 << 30);  // more than any host has memory for
    CHECK(place() == "/var/tmp");
    CHECK(fs::exists(std::getenv(kPlace)));
    CHECK_THAT(too_many.note(),
               Catch::Matchers::StartsWith("note: /dev/shm has ") && Catch::Matchers::Contains("of 1073741824 ranks may take 5368709120 MiB"));
    CHECK(fs::equivalent(fs::path(std::getenv("OMPI_MCA_orte_tmpdir_base")).parent_path(), "/dev/shm"));  // for which there is room
  }
  CHECK(std::getenv(kPlace) == nullptr);
}

TEST_CASE("launcher: a rank survives if its parent is process 1 of a container", "[launcher]") {
  const auto rank = [] {
    if (::getppid() != 1) return 76;
    die_with_parent();
    return 0;
  };
  const auto first = [&] { return code_of(fork_for(rank)); };
  const int code = code_of(fork_for([&] { return ::unshare(CLONE_NEWPID) != 0 ? 77 : code_of(fork_for(first)); }));
  if (code == 77) WARN("skipped: no permission to create a PID namespace");
  CHECK((code == 0 || code == 77));
}

TEST_CASE("launcher: without mpirun the error names the package to install", "[launcher]") {
  const ScopedVariable path("PATH", "/nowhere");
  try {
    launch(read_launch_environment(), 2, {});
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()).find("openmpi-bin") != std::string::npos);
  }
}

TEST_CASE("launcher: ranks of mpirun and srun are recognised, shells of an allocation are not", "[launcher]") {
  const ScopedVariable ompi("OMPI_COMM_WORLD_SIZE", nullptr), pmix("PMIX_RANK", nullptr), pmi("PMI_RANK", nullptr), procid("SLURM_PROCID", nullptr),
      step("SLURM_STEP_ID", nullptr), pty("SLURM_PTY_PORT", nullptr);
  CHECK_FALSE(read_launch_environment().is_rank());
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    const ScopedVariable rank(name, "0");
    CHECK(read_launch_environment().is_rank());
  }
  const ScopedVariable batch("SLURM_PROCID", "0");
  CHECK_FALSE(read_launch_environment().is_rank());  // sbatch sets it in the script
  for (const char* reserved : {"4294967290", "4294967291"}) {
    const ScopedVariable shell("SLURM_STEP_ID", reserved);
    CHECK_FALSE(read_launch_environment().is_rank());
  }
  const ScopedVariable real("SLURM_STEP_ID", "0");
  CHECK(read_launch_environment().is_rank());
  const ScopedVariable interactive("SLURM_PTY_PORT", "40001");
  CHECK_FALSE(read_launch_environment().is_rank());
}

TEST_CASE("launcher: steps of a job are not counted again for a following job that fails before training", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  const fs::path metrics = fs::path(run) / "metrics.jsonl";
  RestartPlanner restart_planner(run, "auto", {"train", "run.yaml"});
  std::ofstream(metrics) << "{\"step\":12,\"loss\":1}\n";
  CHECK(restart_planner().done == 12);
  CHECK(restart_planner().done == 0);
  CHECK(restart_planner().done == 0);
  std::ofstream(metrics, std::ios::app) << "{\"step\":13,\"loss\":1}\n";
  fs::last_write_time(metrics, fs::last_write_time(metrics) + std::chrono::seconds(1));
  CHECK(restart_planner().done == 13);
  fs::remove_all(run);
}

TEST_CASE("launcher: a job that crashed and then failed before training is started a third time", "[launcher]") {
  std::string run = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  REQUIRE(::mkdtemp(run.data()) != nullptr);
  LaunchOptions options;
  options.restarts = 3;
  options.continuation = RestartPlanner(run, "auto", {"train", "run.yaml"});
  // The first job writes the line of step 12, the second nothing, the third succeeds.
  const std::string job = concat("count=$(dirname $0)/count; echo >> $count; case $(wc -l < $count) in 1) echo '{\"step\":12,\"loss\":1}' > ", run,
                                 "/metrics.jsonl; exit 70;; 2) exit 70;; esac\n");
  const Launched result = launch_script(job, options);
  CHECK(result.code == 0);
  CHECK(result.errors == "restart 1 of 3, from the start\nrestart 2 of 3 in 1 s, from the start\n");
  fs::remove_all(run);
}

TEST_CASE("launcher: an mpirun that starts no rank is a failure, and the error names it", "[launcher]") {
  const Launched nothing = launch_script("exit 0\n", {}, "");
  CHECK(nothing.code == 70);
  CHECK(nothing.errors.find("/mpirun: exited with code 0 without starting a rank") != std::string::npos);
  CHECK(launch_script("exit 0\n").code == 0);
  CHECK(launch_script("exit 75\n", {}, "").code == 75);  // ranks may be refused before they announce themselves
}

TEST_CASE("launcher: a rank fails if the world size differs from the requested one", "[launcher]") {
  const ScopedVariable ranks("TRIREME_LAUNCHER_RANKS", "4");
  try {
    announce_start(read_launch_environment(), 1, 1);
    FAIL("no error");
  } catch (const InternalError& error) {
    CHECK(std::string(error.what()).starts_with("mpirun was asked to start 4 ranks, but MPI reports a world size of 1"));
  }
  CHECK_NOTHROW(announce_start(read_launch_environment(), 1, 4));
  const ScopedVariable none("TRIREME_LAUNCHER_RANKS", nullptr);
  CHECK_NOTHROW(announce_start(read_launch_environment(), 0, 1));
}

TEST_CASE("launcher: how each of several ranks has ended is known once all have", "[launcher]") {
  std::vector<pid_t> ranks;
  for (const int code : {0, 7}) ranks.push_back(fork_for([code] { return code; }));
  ranks.push_back(fork_for([] {
    for (;;) ::pause();
    return 0;
  }));
  const auto wait_for = [](const auto& condition) {
    for (int tries = 0; !condition() && tries < 2000; ++tries) ::poll(nullptr, 0, 5);
    return condition();
  };
  const std::vector<pid_t> children = children_of(::getpid());
  for (const pid_t rank : ranks) CHECK(std::ranges::count(children, rank) == 1);
  CHECK(wait_for([&] { return !is_alive(ranks[0]) && !is_alive(ranks[1]); }));
  CHECK(is_alive(ranks[2]));
  CHECK_FALSE(is_stopped(ranks[2]));
  CHECK_FALSE(exit_codes_of_zombies(ranks));
  ::kill(ranks[2], SIGSTOP);
  CHECK(wait_for([&] { return is_stopped(ranks[2]); }));
  ::kill(ranks[2], SIGKILL);
  CHECK(wait_for([&] { return !is_alive(ranks[2]); }));
  CHECK(exit_codes_of_zombies(ranks) == std::vector<int>{0, 7, 128 + SIGKILL});
  CHECK_FALSE(exit_codes_of_zombies({}));
  for (const pid_t rank : ranks) ::waitpid(rank, nullptr, 0);
}

TEST_CASE("launcher: an mpirun that hangs behind the end of its ranks is killed, and the first code that is not 0 is that of the job", "[launcher]") {
  const Scratch scratch;
  // The children outlive the shell, which becomes a program that does not wait for them.
  scratch.write("mpirun", "for code in 0 0 65 70; do (sleep 0.3; exit $code) & done\nexec sleep 100\n");
  const StopRequest stop;
  OutputRelay relay(STDOUT_FILENO, OutputRelay::Kind::kLog);
  MpirunJob job({"/bin/sh", scratch / "mpirun"}, stop, nullptr, relay, {.hang_limit = std::chrono::seconds(1)});
  CHECK(job.wait() == 65);
  CHECK(::kill(job.mpirun(), 0) != 0);
}

TEST_CASE("launcher: too many ranks per host are refused without --oversubscribe", "[launcher]") {
  CHECK(max_ranks_per_host(1) == 64);
  CHECK(max_ranks_per_host(4) == 64);
  CHECK(max_ranks_per_host(5) == 80);
  CHECK_NOTHROW(check_ranks_of_host(64, 2, false));
  CHECK_NOTHROW(check_ranks_of_host(1024, 64, false));
  CHECK_NOTHROW(check_ranks_of_host(4096, 2, true));
  try {
    check_ranks_of_host(65, 2, false);
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()) == "65 ranks on a host with 2 usable cores: allowed at most 64, or --oversubscribe to start them anyway");
  }
}

TEST_CASE("launcher: the limit on open files is raised, or named in the error if it cannot be", "[launcher]") {
  const auto with_limit = [](rlim_t soft, rlim_t hard, int ranks) {
    return code_of(fork_for([&] {
      const rlimit before{soft, hard};
      if (::setrlimit(RLIMIT_NOFILE, &before) != 0) return 77;
      try {
        make_room_for_files(ranks);
      } catch (const ConfigError& error) {
        return std::string(error.what()).find("at least ") != std::string::npos ? 64 : 1;
      }
      rlimit after{};
      ::getrlimit(RLIMIT_NOFILE, &after);
      return after.rlim_cur < static_cast<rlim_t>(64 + 6 * ranks) || after.rlim_max != hard || after.rlim_cur < soft ? 1 : 0;
    }));
  };
  CHECK(with_limit(32, 4096, 8) == 0);
  CHECK(with_limit(32, 120, 8) == 0);
  CHECK(with_limit(4096, 4096, 8) == 0);
  CHECK(with_limit(32, 32, 2) == 64);
  CHECK(with_limit(1024, 1024, 200) == 64);
}

TEST_CASE("stop request: set by each of its signals, none of which ends the process afterwards", "[launcher]") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGXCPU}) {
    {
      const StopRequest stop;
      CHECK_FALSE(stop.requested());
      ::kill(::getpid(), signal);
      CHECK_FALSE(stop.sleep(std::chrono::seconds(20)));
      const StopRequest inner;
      CHECK(inner.signal() == signal);
      CHECK_FALSE(inner.second_requested());
    }
    ::kill(::getpid(), signal);
    sigset_t pending;
    do {
      ::poll(nullptr, 0, 100);
      ::sigpending(&pending);
    } while (::sigismember(&pending, signal) == 1);
  }
  const StopRequest fresh;
  CHECK_FALSE(fresh.requested());
}

TEST_CASE("stop request: a repeated SIGINT counts as second request after 0.3 s, SIGTERM after 1 s", "[launcher]") {
  const auto soon = [](const auto& condition) {
    for (int tries = 0; tries < 500 && !condition(); ++tries) ::poll(nullptr, 0, 10);
    return condition();
  };
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopRequest stop(StopRequest::Second::kReport);
    const StopRequest inner;  // must not exit: a launcher has to end its job first
    ::kill(::getpid(), signal);
    REQUIRE_FALSE(stop.sleep(std::chrono::seconds(20)));
    ::kill(::getpid(), SIGUSR1);
    CHECK_FALSE(stop.second_requested());
    ::kill(::getpid(), signal);  // wrappers may duplicate a signal
    ::poll(nullptr, 0, signal == SIGTERM ? 1050 : 350);
    CHECK_FALSE(stop.second_requested());
    ::kill(::getpid(), signal);
    CHECK(soon([&] { return stop.second_requested(); }));
  }
  // A rank may receive the launcher's SIGUSR1 before its own SIGINT.
  const StopRequest stop(StopRequest::Second::kReport);
  ::kill(::getpid(), SIGUSR1);
  REQUIRE_FALSE(stop.sleep(std::chrono::seconds(20)));
  ::kill(::getpid(), SIGINT);
  ::poll(nullptr, 0, 200);
  CHECK_FALSE(stop.second_requested());
}

TEST_CASE("save request: set by SIGUSR2 until it is cleared, and no stop request", "[launcher]") {
  const auto soon = [](const auto& condition) {
    for (int tries = 0; tries < 500 && !condition(); ++tries) ::poll(nullptr, 0, 10);
    return condition();
  };
  const StopRequest stop;
  {
    SaveRequest save;
    const SaveRequest other;
    CHECK_FALSE(save.requested());
    ::kill(::getpid(), SIGUSR2);
    CHECK(soon([&] { return save.requested(); }));
    CHECK(other.requested());
    save.clear();
    CHECK_FALSE(other.requested());
    ::kill(::getpid(), SIGUSR2);
    CHECK(soon([&] { return save.requested(); }));
  }
  CHECK_FALSE(stop.requested());
  ::kill(::getpid(), SIGUSR2);  // does not end a process that is about to exit
  ::poll(nullptr, 0, 200);
  const SaveRequest fresh;
  CHECK_FALSE(fresh.requested());
}

TEST_CASE("stack request: SIGQUIT calls the newest one, and does not end a process that is about to exit", "[launcher]") {
  std::atomic<int> outer = 0, inner = 0;
  const auto soon = [](const auto& condition) {
    for (int tries = 0; tries < 500 && !condition(); ++tries) ::poll(nullptr, 0, 10);
    return condition();
  };
  {
    const StackRequest first([&] { ++outer; });
    ::kill(::getpid(), SIGQUIT);
    CHECK(soon([&] { return outer == 1; }));
    {
      const StackRequest second([&] { ++inner; });
      ::kill(::getpid(), SIGQUIT);
      CHECK(soon([&] { return inner == 1; }));
    }
    ::kill(::getpid(), SIGQUIT);
    CHECK(soon([&] { return outer == 2; }));
    CHECK(inner == 1);
  }
  ::kill(::getpid(), SIGQUIT);
  ::poll(nullptr, 0, 200);
  CHECK(outer == 2);
}
