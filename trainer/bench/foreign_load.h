#pragma once
#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace trireme::bench {

/// CPU seconds since some past moment.
struct CpuSeconds {
  double wall = 0;
  double busy = 0;  ///< of all processes on the cores that this process may use, with the time that a hypervisor took
  double own = 0;   ///< of this process and of its children that have ended
};

/// `stat`: a file like /proc/stat; if it cannot be read, no core is busy.
CpuSeconds read_cpu_seconds(const std::filesystem::path& stat = "/proc/stat");

/// Seconds that the cores in `cores` were not idle, from the text of /proc/stat with `ticks` per second.
double busy_seconds(const std::string& text, const std::set<int>& cores, double ticks);

/// Numbers of the cores that this process may use.
std::set<int> own_cores();

/// Share of `cores` cores that other processes used between two readings, from 0 to 1.
double foreign_share(const CpuSeconds& before, const CpuSeconds& after, int cores);

/// The share while `work` runs, in which this process's children may run and end.
double foreign_share_during(const std::function<void()>& work);

/// Share of foreign work above which measurements describe the other processes more than the machine.
inline constexpr double kBusyMachine = 0.1;

/// Errors: Error with kInternal if `share` is above kBusyMachine.
void refuse_busy_machine(double share);

}  // namespace trireme::bench
