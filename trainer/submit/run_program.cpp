#include "trainer/submit/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "kernels/core/check.h"
#include "trainer/files/descriptor.h"
#include "trainer/job/spawn.h"

namespace trireme::submit {
namespace {

using Clock = std::chrono::steady_clock;

struct OutputPipe {
  explicit OutputPipe(std::array<int, 2> ends) : read(ends[0]), write(ends[1]) {}
  Descriptor read;
  int write;  ///< closed by the owner of the pipe once the program has it
};

std::array<int, 2> new_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError(concat("cannot create a pipe: ", std::strerror(errno)));
  return ends;
}

/// Reads both streams to their ends. False if that lasts beyond `deadline`, or there is too much.
bool read_streams(const OutputPipe& out, const OutputPipe& err, Clock::time_point deadline, ProgramResult& result) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  std::array<pollfd, 2> waits{pollfd{out.read, POLLIN, 0}, pollfd{err.read, POLLIN, 0}};
  std::array<char, 1 << 16> block{};
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || result.out.size() + result.err.size() > kMostBytes) return false;
    if (::poll(waits.data(), waits.size(), static_cast<int>(left)) < 0 && errno != EINTR) return false;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].fd < 0 || (waits[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      const ssize_t count = ::read(waits[i].fd, block.data(), block.size());
      if (count > 0) (i == 0 ? result.out : result.err).append(block.data(), static_cast<size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) waits[i].fd = -1;
    }
  }
  return true;
}

}  // namespace

std::optional<ProgramResult> run_program(const std::vector<std::string>& command, std::chrono::seconds timeout,
                                         const std::vector<std::string>& environment) {
  OutputPipe out(new_pipe()), err(new_pipe());
  const pid_t child = spawn(command, {.output = out.write, .errors = err.write, .environment = environment});
  ::close(out.write);
  ::close(err.write);
  if (child == 0) return std::nullopt;
  ProgramResult result;
  const bool complete = read_streams(out, err, Clock::now() + timeout, result);
  if (!complete) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!complete) throw IoError(concat(command[0], ": no complete answer within ", timeout.count(), " s; it was killed"));
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace trireme::submit
