#include "trainer/job/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {
namespace {

using Clock = StopRequest::Clock;

constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGXCPU};
constexpr std::array kLeftAlone{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE};
constexpr auto kGrace = std::chrono::seconds(1);
constexpr auto kTwice = std::chrono::milliseconds(300);  // shorter intervals are one Ctrl-C duplicated by wrappers

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  sigaddset(&set, SIGUSR2);
  sigaddset(&set, SIGQUIT);
  return set;
}

/// Singleton, because signals are per process. Never destroyed: its thread runs until the process ends.
class SignalThread {
 public:
  static SignalThread& get() {
    static SignalThread* const only = new SignalThread;
    return *only;
  }

  void listen(StopRequest::Second second) {
    const std::lock_guard lock(mutex_);
    if (second == StopRequest::Second::kReport) ++reporters_;
    if (listeners_++ > 0) return;
    first_signal_ = 0;
    insisted_ = false;
    eventfd_t count = 0;
    ::eventfd_read(descriptor_, &count);
  }
  void leave(StopRequest::Second second) {
    const std::lock_guard lock(mutex_);
    if (second == StopRequest::Second::kReport) --reporters_;
    if (--listeners_ == 0) finished_ = true;
  }
  void add_saver() {
    const std::lock_guard lock(mutex_);
    if (savers_++ == 0) save_requested_ = false;
  }
  void remove_saver() {
    const std::lock_guard lock(mutex_);
    if (--savers_ == 0) saving_finished_ = true;
  }
  void add_answer(const std::function<void()>& answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(&answer);
  }
  void remove_answer(const std::function<void()>& answer) {
    const std::lock_guard lock(mutex_);
    std::erase(answers_, &answer);
    answering_finished_ = answers_.empty();
  }
  bool save_requested() const { return save_requested_; }
  void clear_save_request() { save_requested_ = false; }
  int first_signal() const { return first_signal_; }
  bool second_requested() const { return insisted_; }
  int descriptor() const { return descriptor_; }

 private:
  SignalThread() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0) throw IoError(concat("cannot set up signal handling: ", std::strerror(errno)));
    // Ignored signals would not stay pending for sigwaitinfo(), and with SIGCHLD ignored exit codes of children are lost.
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGXCPU, SIGUSR2, SIGQUIT, SIGCHLD}) {
      struct sigaction before {
      }, standard{};
      standard.sa_handler = SIG_DFL;
      ::sigaction(signal, &standard, &before);
      if (before.sa_handler == SIG_IGN) sigaddset(&inherited_ignored_, signal);
    }
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : kLeftAlone) sigdelset(&blocked, signal);
    ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    std::thread([this] { run(); }).detach();
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "signals");
    // Unblock all signals except those awaited below, SIGCHLD, which is read through a signalfd, and SIGPIPE, as the final message may find no
    // reader.
    sigset_t mask = awaited_signals();
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGPIPE);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    const sigset_t awaited = awaited_signals();
    for (;;)
      if (const int signal = ::sigwaitinfo(&awaited, nullptr); signal > 0) take(signal);
  }

  void take(int signal) {
    const std::lock_guard lock(mutex_);
    const bool ignored = sigismember(&inherited_ignored_, signal) == 1;
    if (signal == SIGUSR2) {
      if (savers_ > 0)
        save_requested_ = true;
      else if (!saving_finished_ && !ignored)
        end_by(signal);
      return;
    }
    if (signal == SIGQUIT) {
      if (!answers_.empty())
        (*answers_.back())();
      else if (!answering_finished_ && !ignored)
        end_by(signal);
      return;
    }
    if (listeners_ == 0) {
      if (!finished_ && !ignored) end_by(signal);
      return;
    }
    if (signal == SIGHUP && ignored) return;
    const auto now = Clock::now();
    if (first_signal_ == 0) {
      first_signal_ = signal;
      first_request_ = now;
      ::eventfd_write(descriptor_, 1);
    } else if ((signal == SIGINT || signal == SIGTERM) && now - first_request_ >= (signal == SIGINT && first_signal_ == SIGINT ? kTwice : kGrace)) {
      insisted_ = true;
      if (reporters_ == 0) exit_at_once();
    }
  }

  /// Applies the default action of the signal, as if it were not blocked.
  static void end_by(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    ::kill(::getpid(), signal);
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }

  [[noreturn]] static void exit_at_once() {
    constexpr std::string_view kWhy = "ended immediately by a second stop request; unsaved progress is lost\n";
    const ssize_t written = ::write(STDERR_FILENO, kWhy.data(), kWhy.size());
    (void)written;
    ::_exit(static_cast<int>(ExitCode::kInternal));
  }

  const int descriptor_;
  sigset_t inherited_ignored_{};
  std::mutex mutex_;
  int listeners_ = 0;
  int reporters_ = 0;      ///< listeners with Second::kReport
  bool finished_ = false;  ///< the last listener has left
  int savers_ = 0;
  bool saving_finished_ = false;  ///< the last saver has left
  std::atomic<bool> save_requested_ = false;
  std::vector<const std::function<void()>*> answers_;  ///< to SIGQUIT; the last one is called
  bool answering_finished_ = false;                    ///< the last of them has been removed
  std::atomic<int> first_signal_ = 0;
  std::atomic<bool> insisted_ = false;
  Clock::time_point first_request_;
};

}  // namespace

void start_signal_thread() { SignalThread::get(); }

void ignore_closed_output() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopRequest::StopRequest(Second second) : second_(second) { SignalThread::get().listen(second); }

StopRequest::~StopRequest() { SignalThread::get().leave(second_); }

int StopRequest::signal() const { return SignalThread::get().first_signal(); }

bool StopRequest::second_requested() const { return SignalThread::get().second_requested(); }

int StopRequest::descriptor() const { return SignalThread::get().descriptor(); }

SaveRequest::SaveRequest() { SignalThread::get().add_saver(); }

SaveRequest::~SaveRequest() { SignalThread::get().remove_saver(); }

bool SaveRequest::requested() const { return SignalThread::get().save_requested(); }

StackRequest::StackRequest(std::function<void()> answer) : answer_(std::move(answer)) { SignalThread::get().add_answer(answer_); }

StackRequest::~StackRequest() { SignalThread::get().remove_answer(answer_); }

void SaveRequest::clear() { SignalThread::get().clear_save_request(); }

bool StopRequest::sleep(std::chrono::milliseconds time) const {
  const auto end = Clock::now() + time;
  while (!requested()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return true;
    pollfd source{descriptor(), POLLIN, 0};
    ::poll(&source, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
  }
  return false;
}

}  // namespace trireme
