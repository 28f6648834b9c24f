#include "trainer/bench/foreign_load.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/machine/environment.h"

namespace trireme::bench {
namespace {

double used_by(int who) {
  rusage use{};
  ::getrusage(who, &use);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

}  // namespace

std::set<int> own_cores() {
  std::set<int> cores;
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask)) cores.insert(core);
  return cores;
}

double busy_seconds(const std::string& text, const std::set<int>& cores, double ticks) {
  double busy = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name == "cpu" || !cores.contains(std::atoi(name.c_str() + 3))) continue;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft_interrupts = 0, stolen = 0;
    words >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> stolen;
    busy += user + nice + system + interrupts + soft_interrupts + stolen;
  }
  return busy / ticks;
}

CpuSeconds read_cpu_seconds(const std::filesystem::path& stat) {
  std::ifstream file(stat);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
  return {wall.count(), busy_seconds(text, own_cores(), static_cast<double>(::sysconf(_SC_CLK_TCK))),
          used_by(RUSAGE_SELF) + used_by(RUSAGE_CHILDREN)};
}

double foreign_share(const CpuSeconds& before, const CpuSeconds& after, int cores) {
  const double foreign = (after.busy - before.busy) - (after.own - before.own);
  return std::clamp(foreign / (std::max(after.wall - before.wall, 1e-3) * cores), 0.0, 1.0);
}

double foreign_share_during(const std::function<void()>& work) {
  const CpuSeconds before = read_cpu_seconds();
  work();
  return foreign_share(before, read_cpu_seconds(), usable_cores());
}

void refuse_busy_machine(double share) {
  if (share <= kBusyMachine) return;
  throw Error(ExitCode::kInternal,
              concat("bench machine: other processes use ", std::lround(100 * share),
                     " % of the cores, so the figures would not be those of this machine; stop the other processes and repeat, or "
                     "take the figures anyway with --allow-busy"));
}

}  // namespace trireme::bench
