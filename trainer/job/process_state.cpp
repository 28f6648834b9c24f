#include "trainer/job/process_state.h"

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "kernels/core/check.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

/// The line of /proc/PID/stat; empty if there is no such process.
std::string stat_of(pid_t process) {
  std::string stat;
  std::getline(std::ifstream(concat("/proc/", process, "/stat")), stat);
  return stat;
}

/// 'R', 'S', 'Z' etc., the field after the name, which may contain any characters; 0 if there is no such process.
char state_in(const std::string& stat) {
  const auto name_end = stat.rfind(") ");
  return name_end != stat.npos ? stat[name_end + 2] : '\0';
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator task(concat("/proc/", parent, "/task"), error), end; !error && task != end; task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

bool is_stopped(pid_t process) {
  const char state = state_in(stat_of(process));
  return state == 'T' || state == 't';
}

bool is_alive(pid_t process) {
  const char state = state_in(stat_of(process));
  return state != '\0' && state != 'Z';
}

std::optional<std::vector<int>> exit_codes_of_zombies(const std::vector<pid_t>& processes) {
  std::vector<int> codes;
  for (const pid_t process : processes) {
    const std::string stat = stat_of(process);
    if (state_in(stat) != 'Z') return std::nullopt;
    const int status = std::atoi(stat.c_str() + stat.rfind(' '));  // last field: exit status in the format of waitpid
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  if (codes.empty()) return std::nullopt;
  return codes;
}

}  // namespace trireme
