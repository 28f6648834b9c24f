#pragma once
// State of other processes of this host, from /proc.
#include <sys/types.h>

#include <optional>
#include <vector>

namespace trireme {

std::vector<pid_t> children_of(pid_t parent);

/// True if the process is stopped by SIGSTOP or a debugger.
bool is_stopped(pid_t process);
/// True if the process exists and is not a zombie.
bool is_alive(pid_t process);

/// The exit codes of `processes` (128 + n for death by signal n) if the list is not empty and all are zombies; else nullopt.
std::optional<std::vector<int>> exit_codes_of_zombies(const std::vector<pid_t>& processes);

}  // namespace trireme
