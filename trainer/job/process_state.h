#pragma once
// Other processes of this host, as /proc describes them.
#include <sys/types.h>

#include <optional>
#include <vector>

namespace trireme {

std::vector<pid_t> children_of(pid_t parent);

/// By SIGSTOP or a debugger.
bool is_stopped(pid_t process);
/// It exists and is not a zombie.
bool is_alive(pid_t process);

/// The exit codes of `processes` (128 + n where signal n ended one) if there are any and all are zombies, else nothing.
std::optional<std::vector<int>> exit_codes_of_zombies(const std::vector<pid_t>& processes);

}  // namespace trireme
