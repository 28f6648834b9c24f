#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/mesh.h"
#include "trainer/config/config.h"

namespace trireme {

/// Content of environment.json: versions, hardware and layout of a run, so that its measurements can be interpreted later.
nlohmann::ordered_json describe_environment(const Context& ctx, int world_size, const MeshShape& mesh);

/// {"pipeline": 2, ...}: the degree of each shown axis, outermost first.
nlohmann::ordered_json describe_layout(const MeshShape& mesh);

/// The model section as JSON, for readers of a checkpoint that have no YAML.
nlohmann::json describe_model(const ModelConfig& model);

/// The CPU's name as the kernel reports it, or "unknown".
std::string cpu_model();

/// This machine's host name, for messages.
std::string host_name();

/// Bytes of host memory available to this job: all of it, or the cgroup limit of a container or job.
double host_memory();

/// True if the NVIDIA driver has made the file of a GPU (nvidia0, nvidia1, ...) in `directory`: this process could be given one.
bool has_gpu_files(const std::filesystem::path& directory = "/dev");

/// Cores this process may run on.
int usable_cores();

/// Threads per rank: `wanted` if positive, else the cores of this host divided by the ranks on it, but at most the cores this rank is bound to.
int threads_per_rank(int ranks_on_host, int wanted);

}  // namespace trireme
