#include "trainer/doctor/probe_host.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/gpu.h"
#include "kernels/core/isa.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/mpi.h"
#include "parallel/comm/nccl.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/files/printable.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/machine/cgroup.h"
#include "trainer/machine/environment.h"

namespace fs = std::filesystem;

namespace trireme::doctor {
namespace {

constexpr const char *kGroups = "/proc/self/cgroup", *kGroupMount = "/sys/fs/cgroup";

double or_none(double limit) { return std::isfinite(limit) ? limit : kNone; }

double hard_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return kNone;
  return static_cast<double>(limit.rlim_max);
}

double lower(double a, double b) { return a == kNone ? b : b == kNone ? a : std::min(a, b); }

/// Share of the usable cores that other processes use. Every rank of the host sleeps here at the same time, so that none counts as another process.
double measure_load() {
  return bench::foreign_share_during([] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
}

CpuFacts probe_cpu(const RankPlace& place) {
  CpuFacts cpu;
  cpu.model = cpu_model();
  cpu.isa = name_of(best_isa());
  cpu.online = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::set<int> cores = bench::own_cores();
  cpu.cores.assign(cores.begin(), cores.end());
  cpu.quota = or_none(cpu_quota(kGroups, kGroupMount));
  cpu.threads = threads_per_rank(place.local_size, place.threads);
  const double foreign = measure_load();
  if (place.local_rank == 0) cpu.foreign = foreign;
  return cpu;
}

std::string without_key(const std::string& error) {
  constexpr std::string_view kKey = "run.device=cuda: ";
  return error.starts_with(kKey) ? error.substr(kKey.size()) : error;
}

/// Opens a GPU as a run does, and its libraries.
void open_gpu(int index, DeviceFacts& devices) {
  try {
    cuda::Gpu gpu(index, {});
    Arena arena(gpu);
    devices.free = static_cast<double>(gpu.free_bytes());
    devices.libraries = gemm_library({Device::kCuda, &arena, 1, &gpu});
  } catch (const std::exception& error) {
    devices.opening = without_key(printable(error));
  }
}

DeviceFacts probe_devices(const RankPlace& place) {
  DeviceFacts devices;
  devices.files = has_gpu_files();
  try {
    const int count = cuda::gpu_count();
    for (int index = 0; index < count; ++index) {
      const cuda::GpuProperties p = cuda::gpu_properties(index);
      devices.gpus.push_back({p.name, static_cast<double>(p.memory), 10 * p.major + p.minor, p.driver, p.runtime});
    }
    open_gpu(place.local_rank % count, devices);
    nccl_available(&devices.nccl_missing);
  } catch (const std::exception& error) {
    devices.gpus.clear();
    devices.missing = without_key(printable(error));
  }
  return devices;
}

MpiFacts probe_mpi(const LaunchEnvironment& environment) {
  MpiFacts mpi;
  mpi.library = mpi_library_version();
  if (environment.is_rank()) mpi.starter = environment.starter == LaunchEnvironment::Starter::kMpirun ? "mpirun" : "srun";
  try {
    require_mpi();
    mpi.mpirun = find_mpirun(environment).string();
  } catch (const std::exception& error) {
    mpi.missing = printable(error);
  }
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", ignored)) mpi.infiniband.push_back(device.path().filename().string());
  mpi.interfaces = interfaces_in("/sys/class/net");
  return mpi;
}

LimitFacts probe_limits() {
  LimitFacts limits{
      .open_files = hard_limit(RLIMIT_NOFILE), .locked = hard_limit(RLIMIT_MEMLOCK), .tasks = or_none(task_limit(kGroups, kGroupMount))};
  if (::geteuid() != 0) limits.tasks = lower(limits.tasks, hard_limit(RLIMIT_NPROC));  // which does not bind root
  struct statvfs memory {};
  if (::statvfs("/dev/shm", &memory) == 0) {
    limits.shared = static_cast<double>(memory.f_blocks) * static_cast<double>(memory.f_frsize);
    limits.shared_free = static_cast<double>(memory.f_bavail) * static_cast<double>(memory.f_frsize);
  }
  return limits;
}

}  // namespace

double available_memory(const fs::path& meminfo) {
  std::ifstream file(meminfo);
  double kilobytes = 0;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) kilobytes = std::strtod(line.c_str() + line.find(':') + 1, nullptr);
  return kilobytes * 1024;
}

std::vector<NetworkInterface> interfaces_in(const fs::path& directory) {
  std::vector<NetworkInterface> interfaces;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    NetworkInterface interface { entry.path().filename().string() };
    std::string state;
    std::ifstream(entry.path() / "operstate") >> state;
    if (interface.name == "lo" || state != "up") continue;
    if (double speed = 0; std::ifstream(entry.path() / "speed") >> speed && speed > 0) interface.megabits = speed;
    interfaces.push_back(interface);
  }
  std::ranges::sort(interfaces, {}, &NetworkInterface::name);
  return interfaces;
}

RankFacts probe_host(const LaunchEnvironment& environment, const RankPlace& place, int rank, bool gpus) {
  RankFacts facts;
  facts.rank = rank;
  facts.local_rank = place.local_rank;
  facts.local_size = place.local_size;
  facts.host = host_name();
  facts.cpu = probe_cpu(place);
  facts.memory.total = host_memory();
  facts.memory.available = std::min(facts.memory.total, available_memory("/proc/meminfo"));
  if (gpus)
    facts.devices = probe_devices(place);
  else
    facts.devices.missing = "run.device is cpu";
  facts.mpi = probe_mpi(environment);
  facts.limits = probe_limits();
  return facts;
}

}  // namespace trireme::doctor
