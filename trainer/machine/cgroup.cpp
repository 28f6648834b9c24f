#include "trainer/machine/cgroup.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// A number in a file; infinity if the file does not exist or contains "max" or "-1".
double number_in(const fs::path& path) {
  double value = 0;
  std::ifstream file(path);
  return file >> value && value >= 0 ? value : kNoLimit;
}

/// `of_group(directory, unified)`: the limit of one cgroup; unified: version 2.
double lowest(const fs::path& groups, const fs::path& mount, const std::string& controller,
              const std::function<double(const fs::path& directory, bool unified)>& of_group) {
  double least = kNoLimit;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // "0::/path" of version 2, "9:memory:/path" of version 1
    const size_t controllers = line.find(':') + 1, path = line.find(':', controllers) + 1;
    if (controllers == 0 || path == 0) continue;
    const std::string named = "," + line.substr(controllers, path - 1 - controllers) + ",";
    const bool unified = named == ",,";
    if (!unified && named.find("," + controller + ",") == named.npos) continue;
    const fs::path root = unified ? mount : mount / controller;
    // In a container the path may be the host's, of which only the root is mounted.
    for (fs::path group = fs::path(line.substr(path)).relative_path();; group = group.parent_path()) {
      least = std::min(least, of_group(root / group, unified));
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace

double memory_limit(const fs::path& groups, const fs::path& mount) {
  return lowest(groups, mount, "memory",
                [](const fs::path& group, bool unified) { return number_in(group / (unified ? "memory.max" : "memory.limit_in_bytes")); });
}

double cpu_quota(const fs::path& groups, const fs::path& mount) {
  return lowest(groups, mount, "cpu", [](const fs::path& group, bool unified) {
    double quota = 0, period = 0;  // microseconds of CPU time in each period
    if (unified) {
      std::ifstream file(group / "cpu.max");  // "200000 100000", or "max 100000", which is no number
      if (!(file >> quota >> period)) return kNoLimit;
    } else {
      quota = number_in(group / "cpu.cfs_quota_us");
      period = number_in(group / "cpu.cfs_period_us");
    }
    return period > 0 && period < kNoLimit ? quota / period : kNoLimit;
  });
}

double task_limit(const fs::path& groups, const fs::path& mount) {
  return lowest(groups, mount, "pids", [](const fs::path& group, bool) { return number_in(group / "pids.max"); });
}

}  // namespace trireme
