#pragma once
// Probes of this process and its host that need no other rank.
#include <filesystem>
#include <optional>

#include "trainer/config/config.h"
#include "trainer/doctor/facts.h"
#include "trainer/job/launch_environment.h"
#include "trainer/machine/machine.h"

namespace trireme::doctor {

/// Everything but `run`, `data` and the clock. Takes a third of a second, in which the first rank of a host measures the load by other processes; all
/// ranks call it at the same time. `devices` is left empty where `gpus` is false. Never throws.
RankFacts probe_host(const LaunchEnvironment& environment, const RankPlace& place, int rank, bool gpus);

/// Bytes that are free, or that the kernel can free, by a file like /proc/meminfo; 0 if it cannot be read.
double available_memory(const std::filesystem::path& meminfo);
/// The network interfaces of a directory like /sys/class/net that are up, without loopback.
std::vector<NetworkInterface> interfaces_in(const std::filesystem::path& directory);

}  // namespace trireme::doctor
