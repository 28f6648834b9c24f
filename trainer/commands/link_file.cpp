#include "trainer/commands/link_file.h"

#include <filesystem>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/write.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/run_forecast.h"

namespace trireme {

LinkFile::LinkFile(const std::string& path) : path_(path) {
  check_replaceable(path);
  std::error_code error;
  exists_ = std::filesystem::exists(path, error);
  if (exists_) cluster_ = load_cluster(path);
}

void LinkFile::write(const LinkConfig& link, const std::string& gpu, int ranks, int local_ranks) {
  const bool one_host = ranks == local_ranks;
  if (!exists_) {
    cluster_.name = host_name();
    cluster_.device.type = gpu.empty() ? "cpu" : device_type_of(gpu);
    if (cluster_.device.type.empty())
      throw ConfigError(concat("--cluster=", path_, ": ", gpu, " has no built-in figures; give a cluster file that has them all"));
    cluster_.devices_per_node = local_ranks;
    cluster_.nodes = ranks / local_ranks;
    if (gpu.empty()) cluster_.device.cores = usable_cores();
  }
  LinkConfig& measured = one_host ? cluster_.node_link : cluster_.network;
  measured.all_reduce = link.all_reduce;
  measured.all_gather = link.all_gather;
  measured.reduce_scatter = link.reduce_scatter;
  measured.send = link.send;
  write_durably(path_, to_yaml(cluster_));
}

void refuse_shared_cores(const Config& config, const RankPlace& place) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (config.run.device == DeviceType::kCuda || place.local_size <= cores) return;
  throw ConfigError(concat("bench comm --fit: ", counted(place.local_size, "rank"), " on a host with ", counted(cores, "core"),
                           " would measure how the kernel shares the cores; allowed at most ", cores, " per host"));
}

}  // namespace trireme
