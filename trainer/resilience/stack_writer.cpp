#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"
#include "trainer/resilience/stacks.h"

namespace fs = std::filesystem;

namespace trireme {

std::vector<ListedThread> threads_of(pid_t process) {
  std::vector<ListedThread> threads;
  std::error_code error;
  for (fs::directory_iterator task(concat("/proc/", process, "/task"), error), end; !error && task != end; task.increment(error)) {
    std::string name;
    std::getline(std::ifstream(task->path() / "comm"), name);
    threads.push_back({std::atoi(task->path().filename().c_str()), printable(name)});
  }
  if (threads.empty()) throw MissingFileError(concat("there is no process ", process, " on this host"));
  // The main thread first: ids start again from the beginning when they reach the largest one, so a later thread may have a smaller id.
  std::ranges::sort(threads, {}, [&](const ListedThread& thread) { return std::pair(thread.id != process, thread.id); });
  return threads;
}

StackWriter::StackWriter(const char* program) : program_(program), pid_{} { std::snprintf(pid_, sizeof pid_, "%d", ::getpid()); }

/// vfork, because it neither copies the page tables of a process with much memory nor makes registered memory copy-on-write.
bool StackWriter::write(int descriptor, int seconds) const {
  const char* const arguments[] = {"trireme", "inspect", "--process", pid_, nullptr};
  const pid_t helper = ::vfork();
  if (helper == 0) {
    ::dup2(descriptor, STDOUT_FILENO);
    ::dup2(descriptor, STDERR_FILENO);
    ::execv(program_, const_cast<char* const*>(arguments));
    ::_exit(127);
  }
  if (helper < 0) return false;
#ifdef PR_SET_PTRACER
  ::prctl(PR_SET_PTRACER, helper, 0, 0, 0);  // has an effect, and is needed, where Yama restricts ptrace to ancestors
#endif
  int status = 0;
  constexpr int kPollsPerSecond = 100;
  const timespec pause{0, 1'000'000'000 / kPollsPerSecond};
  for (int polls = seconds * kPollsPerSecond; polls > 0; --polls) {
    const pid_t ended = ::waitpid(helper, &status, WNOHANG);
    if (ended == helper) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended < 0 && errno != EINTR) return false;
    ::nanosleep(&pause, nullptr);
  }
  ::kill(helper, SIGKILL);  // its threads continue once it is gone
  ::waitpid(helper, nullptr, 0);
  return false;
}

}  // namespace trireme
