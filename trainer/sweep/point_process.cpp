#include "trainer/sweep/point_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/descriptor.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/spawn.h"
#include "trainer/sweep/state.h"

namespace fs = std::filesystem;

namespace trireme::sweep {
namespace {

constexpr const char* kThreadsVariable = "OMP_NUM_THREADS";

/// Runs in the child after fork; only async-signal-safe calls, because another thread may have held any lock.
[[noreturn]] void become(char* const* command, char* const* environment, int output, int messages, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(70);  // the sweep died before prctl
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(messages, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // the signal thread of the sweep has blocked almost all
  ::execve("/proc/self/exe", command, environment);
  ::_exit(127);
}

bool is_remark(const std::string& line) { return line.empty() || line.starts_with("note: ") || line.starts_with("warning: "); }

}  // namespace

PointProcess::PointProcess(const std::string& sweep_directory, const PointRun& run, int64_t until, std::optional<int64_t> threads)
    : directory_(sweep_directory),
      run_(&run),
      until_(until),
      lock_(job_directory(sweep_directory, run.point.index), {}, {"point", "another process is running it"}),
      messages_(job_directory(sweep_directory, run.point.index) / "messages.log") {
  const std::vector<std::string> words{"trireme", "train", freeze_config(sweep_directory, run).string(), "--max-steps", std::to_string(until)};
  const std::vector<std::string> variables = threads ? environment_with({{kThreadsVariable, std::to_string(*threads)}}) : std::vector<std::string>();
  const std::vector<char*> command = exec_words(words), replaced = exec_words(variables);
  char* const* const environment = threads ? replaced.data() : environ;
  const Descriptor output(open_writable(messages_.parent_path() / "output.log", Existing::kAppended));
  const Descriptor messages(open_writable(messages_, Existing::kAppended));
  messages_before_ = static_cast<int64_t>(fs::file_size(messages_));
  const pid_t self = ::getpid();
  record_start(directory_, run.point.index, until, self);
  process_ = ::fork();
  if (process_ == 0) become(command.data(), environment, output, messages, self);
  if (process_ < 0) throw IoError(concat("cannot start a process: ", std::strerror(errno)));
  ::setpgid(process_, process_);  // parent and child both call it; the first one wins
}

PointProcess::~PointProcess() {
  if (process_ < 0) return;
  ::kill(-process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void PointProcess::signal(int number) const {
  if (process_ > 0) ::kill(process_, number);
}

std::optional<PointEnd> PointProcess::poll() {
  int status = 0;
  if (process_ < 0 || ::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
  process_ = -1;
  PointEnd end;
  end.killed = WIFSIGNALED(status);
  end.code = end.killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (end.killed) end.message = concat("killed by signal ", WTERMSIG(status));
  if (!end.killed && end.code != 0) end.message = message(end.code);
  return end;
}

/// The last line says why a run has ended; a refused configuration has a line for each reason.
std::string PointProcess::message(int code) const {
  constexpr size_t kLongest = 2000;
  const size_t most = code == static_cast<int>(ExitCode::kUsage) ? 5 : 1;
  std::istringstream text(read_text(messages_).substr(static_cast<size_t>(messages_before_)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (!is_remark(line)) lines.push_back(line.substr(0, kLongest));
  std::string last;
  for (size_t i = lines.size() > most ? lines.size() - most : 0; i < lines.size(); ++i) last += (last.empty() ? "" : "\n") + lines[i];
  return last;
}

int64_t PointProcess::last_step() const {
  constexpr off_t kTail = 16384;
  const Descriptor file(try_open_regular_file((fs::path(run_->config.run.directory) / "metrics.jsonl").string()));
  if (file < 0) return 0;
  std::string tail(kTail, '\0');
  const off_t size = ::lseek(file, 0, SEEK_END);
  const ssize_t count = ::pread(file, tail.data(), tail.size(), std::max<off_t>(0, size - kTail));
  tail.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  // The line of a step: {"step":12,"loss":...
  const size_t at = tail.rfind("{\"step\":");
  return at == tail.npos ? 0 : std::max<int64_t>(0, std::atoll(tail.c_str() + at + 8));
}

}  // namespace trireme::sweep
