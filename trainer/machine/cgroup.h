#pragma once
// Limits of a process's cgroups, which containers and batch systems set. Supports cgroup v1 and v2. `groups`: a file like /proc/self/cgroup; `mount`: a
// directory like /sys/fs/cgroup. Each function returns the lowest limit from the process's own cgroup up to the root, and infinity if none is set.
#include <filesystem>

namespace trireme {

double memory_limit(const std::filesystem::path& groups, const std::filesystem::path& mount);  ///< bytes
double cpu_quota(const std::filesystem::path& groups, const std::filesystem::path& mount);     ///< cores, as CPU seconds per second
double task_limit(const std::filesystem::path& groups, const std::filesystem::path& mount);    ///< processes and threads

}  // namespace trireme
