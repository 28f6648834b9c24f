#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/mesh.h"
#include "trainer/config/config.h"

namespace trireme {

/// environment.json: versions, hardware and layout of a run, so that its figures can be read later.
nlohmann::ordered_json describe_environment(const Context& ctx, int world_size, const MeshShape& mesh);

/// {"pipeline": 2, ...}: the degree of each shown axis, outermost first.
nlohmann::ordered_json describe_layout(const MeshShape& mesh);

/// The model section as JSON, for readers of a checkpoint that have no YAML.
nlohmann::json describe_model(const ModelConfig& model);

/// Of this machine, as messages name it.
std::string host_name();

/// Bytes of this machine's memory that this process and its like may take: all of it, or what the control groups of a container or job leave.
double host_memory();

/// The least limit on memory from a process's control group up to the root, infinite where none is set. `groups`: as /proc/self/cgroup; `mount`: as
/// /sys/fs/cgroup. Both versions of control groups.
double memory_limit(const std::filesystem::path& groups, const std::filesystem::path& mount);

/// Cores this process may run on.
int usable_cores();

/// Threads each rank may use: `wanted` where that is positive, else the cores of this host divided by the ranks on it, but no more than this rank is bound
/// to.
int threads_per_rank(int ranks_on_host, int wanted);

}  // namespace trireme
