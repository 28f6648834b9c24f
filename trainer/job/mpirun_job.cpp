#include "trainer/job/mpirun_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/process_state.h"

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace trireme {
namespace {

/// The signal on which mpirun kills its ranks and removes its files. Hydra dies of SIGHUP and leaves its ranks for a second.
int end_signal() {
  static const int signal = mpirun_kind() == MpirunKind::kHydra ? SIGQUIT : SIGHUP;
  return signal;
}

[[noreturn]] void fail_to_start() { throw IoError(concat("cannot start mpirun: ", std::strerror(errno))); }

/// Runs in the child after fork; only async-signal-safe calls, because another thread may have held any lock.
[[noreturn]] void become(char* const* command, int standard_output, int standard_error, pid_t parent, int end) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, end);
  if (::getppid() != parent) ::_exit(70);  // the parent died before prctl
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(standard_output, STDOUT_FILENO);
  ::dup2(standard_error, STDERR_FILENO);
  // A stop signal may be sent to all processes of a job: mpirun must not kill ranks that are about to save. Open MPI starts ranks with these
  // unblocked.
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGINT);
  ::signal(end, SIG_DFL);
  for (const int forwarded : {SIGUSR1, SIGUSR2}) ::signal(forwarded, SIG_IGN);  // must not end mpirun outside the phase in which it forwards them
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(command[0], command);
  ::_exit(127);
}

/// Waits until the launcher has died, i.e. its end of `pipe` is closed; then gives mpirun five seconds before SIGKILL. Has its own process group, so
/// that signals to the launcher's group do not reach it.
[[noreturn]] void guard(const std::array<int, 2>& pipe, pid_t mpirun) {
  ::setpgid(0, 0);
  ::close(pipe[1]);
  ::dup2(pipe[0], STDIN_FILENO);
  // Close inherited descriptors: a reader of the launcher's output waits for the last writer. Kernels before 5.9 have no close_range.
  if (::close_range(STDOUT_FILENO, ~0U, 0) != 0)
    for (int descriptor = STDOUT_FILENO; descriptor < 65536; ++descriptor) ::close(descriptor);
  char nothing;
  while (::read(STDIN_FILENO, &nothing, 1) < 0 && errno == EINTR) {
  }
  for (int tenths = 0; tenths < 50; ++tenths) {
    if (::kill(-mpirun, 0) != 0) ::_exit(0);
    ::poll(nullptr, 0, 100);
  }
  ::kill(-mpirun, SIGKILL);
  ::_exit(0);
}

bool is_our_code(int code) {
  for (ExitCode ours :
       {ExitCode::kOk, ExitCode::kUsage, ExitCode::kData, ExitCode::kMissingFile, ExitCode::kInternal, ExitCode::kIo, ExitCode::kRequeue})
    if (code == static_cast<int>(ours)) return true;
  return false;
}

}  // namespace

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

VerdictBox::VerdictBox() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) fail_to_start();
}

VerdictBox::~VerdictBox() { ::close(descriptor_); }

void VerdictBox::put(const Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  verdict_ = verdict;
  ::eventfd_write(descriptor_, 1);
}

std::optional<Verdict> VerdictBox::get() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

MpirunJob::MpirunJob(const std::vector<std::string>& command, const StopRequest& stop, const VerdictBox* verdicts, OutputRelay& relay,
                     const MpirunJobOptions& options)
    : stop_(stop), verdicts_(verdicts), relay_(relay), options_(options), program_(command.front()) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  child_ended_ = ::signalfd(-1, &child_signal, SFD_NONBLOCK | SFD_CLOEXEC);
  if (child_ended_ < 0) fail_to_start();
  std::array<int, 2> errors{}, output{}, guard_pipe{};
  if (::pipe2(errors.data(), O_CLOEXEC) != 0) fail_to_start();
  errors_ = errors[0];
  if (::pipe2(output.data(), O_CLOEXEC) != 0) fail_to_start();
  output_ = output[0];
  const pid_t self = ::getpid();
  const int end = end_signal();
  mpirun_ = ::fork();
  if (mpirun_ == 0) become(words.data(), output[1], errors[1], self, end);
  ::close(output[1]);
  ::close(errors[1]);
  if (mpirun_ < 0) fail_to_start();
  ::setpgid(mpirun_, mpirun_);  // parent and child both call it; the first one wins
  for (const int source : {errors_, output_}) ::fcntl(source, F_SETFL, O_NONBLOCK);
  if (::pipe2(guard_pipe.data(), O_CLOEXEC) != 0) return;  // the job runs without a guard
  guard_pipe_ = guard_pipe[1];
  guard_ = ::fork();
  if (guard_ == 0) guard(guard_pipe, mpirun_);
  ::close(guard_pipe[0]);
}

MpirunJob::~MpirunJob() {
  if (!ended_) kill_now();
  if (guard_ > 0) {
    ::kill(guard_, SIGKILL);
    ::waitpid(guard_, nullptr, 0);
  }
  for (const int descriptor : {guard_pipe_, errors_, output_, child_ended_})
    if (descriptor >= 0) ::close(descriptor);
}

int MpirunJob::wait() {
  while (!ended_) {
    poll_all(500);
    forward_stop();
    forward_save();
    watch_for_hang();
    reap();
    if (!ended_) take_verdict();
  }
  while (pass_errors() || pass_output()) {
  }
  write_all(STDERR_FILENO, filter_.finish());
  const int code = final_code();
  if (killed_) wait_for_ranks();
  return code;
}

void MpirunJob::poll_all(int milliseconds) {
  const int verdict = verdicts_ != nullptr && !condemned_ ? verdicts_->descriptor() : -1;
  const int stop = stop_.requested() ? -1 : stop_.descriptor();  // afterwards only a second request matters
  const int reader = relay_.pending() ? relay_.descriptor() : -1;
  std::array<pollfd, 6> sources{pollfd{errors_, POLLIN, 0}, pollfd{output_, POLLIN, 0},      pollfd{reader, POLLOUT, 0},
                                pollfd{stop, POLLIN, 0},    pollfd{child_ended_, POLLIN, 0}, pollfd{verdict, POLLIN, 0}};
  ::poll(sources.data(), sources.size(), condemned_ || stop_.requested() ? std::min(milliseconds, 100) : milliseconds);
  if (sources[0].revents != 0) pass_errors();
  if (sources[1].revents != 0) pass_output();
  if (sources[2].revents != 0) relay_.write_some();
  signalfd_siginfo info{};
  while (::read(child_ended_, &info, sizeof info) > 0) {  // only used to wake poll()
  }
}

/// Returns false if there is nothing more to read now.
bool MpirunJob::pass_errors() {
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(errors_, bytes.data(), bytes.size());
  if (count > 0) write_all(STDERR_FILENO, filter_.feed({bytes.data(), static_cast<size_t>(count)}));
  if (count == 0) ::close(std::exchange(errors_, -1));  // poll() ignores -1
  return count > 0;
}

bool MpirunJob::pass_output() {
  if (output_ < 0) return false;
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(output_, bytes.data(), bytes.size());
  if (count > 0) relay_.add({bytes.data(), static_cast<size_t>(count)});
  if (count == 0) ::close(std::exchange(output_, -1));
  return count > 0;
}

/// Forwards a stop only once the ranks are ready: earlier the signal would kill a rank that has not blocked it yet, and there is nothing to save.
void MpirunJob::forward_stop() {
  if (!stop_.requested()) {
    if (!filter_.ready() || forwarded_ || condemned_) return;
    moves_ = options_.should_move && options_.should_move();
    forwarded_ = relay_.lost_text() || moves_;
    if (forwarded_) ::kill(mpirun_, SIGUSR1);
    return;
  }
  if (!end_requested_ && (stop_.second_requested() || (!forwarded_ && !filter_.ready()))) {
    end_requested_ = Clock::now();
    ::kill(mpirun_, end_signal());
  }
  if (end_requested_) {
    if (Clock::now() - *end_requested_ > seconds(3)) kill_now();
  } else if (!std::exchange(forwarded_, true)) {
    ::kill(mpirun_, SIGUSR1);
  }
}

/// A request that arrives before the ranks are ready is forwarded once they are: they save after their first step.
void MpirunJob::forward_save() {
  if (!save_.requested() || !filter_.ready()) return;
  save_.clear();
  ::kill(mpirun_, SIGUSR2);
}

/// After a verdict all ranks have been ordered to exit, so mpirun should end on its own; if it does not, it is killed.
void MpirunJob::take_verdict() {
  if (!condemned_) {
    const auto verdict = verdicts_ != nullptr && !end_requested_ ? verdicts_->get() : std::nullopt;
    if (!verdict) return;
    condemn(*verdict);
  }
  const auto waited = Clock::now() - *condemned_;
  // If several ranks may have died first, wait longer for the notice of mpirun, which knows the order.
  const bool several = verdict_ && verdict_->deaths.size() > 1;
  if (waited > milliseconds(several ? 1000 : 200) || !filter_.first_exit_notice().empty()) tell_verdict();
  if (waited > seconds(2) && !std::exchange(told_to_end_, true)) ::kill(mpirun_, end_signal());
  if (waited > seconds(4)) kill_now();
}

void MpirunJob::condemn(const Verdict& verdict) {
  condemned_ = Clock::now();
  verdict_ = verdict;
  // A stopped mpirun no longer relays output, so its ranks block sooner or later, and none of them is the cause.
  if (verdict.deaths.empty() && is_stopped(mpirun_)) {
    *verdict_ = {.kind = Verdict::Kind::kLauncher, .step = verdict.step};
    verdict_->text = concat("mpirun (process ", mpirun_, ") is stopped by SIGSTOP or a debugger, and its ranks cannot continue without it");
  }
}

/// If ranks died within a few milliseconds of each other, mpirun, their parent, knows which was first; the other deaths are consequences.
const Verdict& MpirunJob::final_verdict() const {
  const std::vector<Verdict>& deaths = verdict_->deaths;
  const auto first = std::find_if(deaths.begin(), deaths.end(), [&](const Verdict& death) { return death.ranks.front() == filter_.first_rank(); });
  return first != deaths.end() ? *first : *verdict_;
}

/// Prints mpirun's notice about the first rank to end, if it has arrived, then the verdict.
void MpirunJob::tell_verdict() {
  if (!verdict_) return;
  if (const std::string first = filter_.first_exit_notice(); !first.empty()) {
    write_all(STDERR_FILENO, first + "\n");
    first_end_told_ = true;
  }
  reported_ = final_verdict();
  write_all(STDERR_FILENO, reported_->text + "\n");
  verdict_.reset();
}

/// Open MPI 4.1 sometimes deadlocks after its ranks have ended, and then reacts only to SIGKILL.
void MpirunJob::watch_for_hang() {
  if (Clock::now() < next_look_) return;
  next_look_ = Clock::now() + seconds(1);
  list_children();
  const auto codes = exit_codes_of_zombies(children_of(mpirun_));
  if (!codes) {
    all_dead_since_.reset();
  } else if (!all_dead_since_) {
    all_dead_since_ = Clock::now();
  } else if (Clock::now() - *all_dead_since_ > options_.hang_limit) {
    const auto first = std::find_if(codes->begin(), codes->end(), [](int code) { return code != 0; });
    kill_now();
    code_ = first == codes->end() ? 0 : *first;
    killed_ = false;
  }
}

void MpirunJob::reap() {
  int status = 0;
  if (ended_ || ::waitpid(mpirun_, &status, WNOHANG) != mpirun_) return;  // SIGCHLD is never ignored here (SignalThread)
  ended_ = true;
  killed_ = WIFSIGNALED(status);
  code_ = killed_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Waits for the ranks of this host, which the kernel kills after mpirun: the next job must not find their GPU or shared memory still in use.
void MpirunJob::wait_for_ranks() {
  const auto limit = Clock::now() + seconds(5);
  while (std::any_of(children_.begin(), children_.end(), is_alive) && Clock::now() < limit) ::poll(nullptr, 0, 20);
}

/// Keeps the previous list if mpirun has just died and has no children any more.
void MpirunJob::list_children() {
  if (std::vector<pid_t> now = children_of(mpirun_); !now.empty()) children_ = std::move(now);
}

void MpirunJob::kill_now() {
  list_children();
  ::kill(-mpirun_, SIGKILL);
  ::waitpid(mpirun_, nullptr, 0);
  ended_ = true;
  killed_ = true;
  code_ = 128 + SIGKILL;
}

/// True for an exit code of this program's ranks, as opposed to one of mpirun or of a rank that crashed.
bool MpirunJob::is_answer(int code) const {
  return is_our_code(code) || (options_.has_findings && filter_.started() && code == static_cast<int>(ExitCode::kFindings));
}

int MpirunJob::final_code() {
  const bool answered = !killed_ && filter_.started() && is_answer(code_) && code_ != static_cast<int>(ExitCode::kInternal);
  if (end_requested_ && !answered) {
    const bool second_requested = stop_.second_requested();
    write_all(STDERR_FILENO, second_requested     ? "ended immediately by a second stop request; unsaved progress is lost\n"
                             : options_.resumable ? "stopped on request before the first step; rerun the same command to resume\n"
                                                  : "stopped on request\n");
    return static_cast<int>(second_requested ? ExitCode::kInternal : ExitCode::kRequeue);
  }
  // mpirun may notice a death before the hub's verdict arrives; a rank that was ordered to exit ends with kInternal.
  const bool failed = code_ == static_cast<int>(ExitCode::kInternal) || !is_answer(code_);
  const auto limit = Clock::now() + seconds(1);
  while (verdicts_ != nullptr && failed && !killed_ && !condemned_ && !end_requested_ && Clock::now() < limit) {
    pollfd source{verdicts_->descriptor(), POLLIN, 0};
    ::poll(&source, 1, 100);
    if (const auto verdict = verdicts_->get()) condemn(*verdict);
  }
  if (condemned_) {
    tell_verdict();
    if (const std::string first = filter_.first_exit_notice(); !first.empty() && !first_end_told_) write_all(STDERR_FILENO, first + "\n");
    return static_cast<int>(ExitCode::kInternal);
  }
  if (code_ == 0 && !filter_.started()) {
    write_all(STDERR_FILENO, concat(program_, ": exited with code 0 without starting a rank; put the mpirun of Open MPI first in PATH\n"));
    return static_cast<int>(ExitCode::kInternal);
  }
  if (is_answer(code_)) return code_;
  if (killed_) {
    write_all(STDERR_FILENO, concat("mpirun was killed by signal ", code_ - 128, "\n"));
  } else {
    write_all(STDERR_FILENO, filter_.notices().empty() ? concat("mpirun exited with code ", code_, "\n") : filter_.notices());
  }
  return static_cast<int>(ExitCode::kInternal);
}

}  // namespace trireme
