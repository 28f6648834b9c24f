#include "trainer/machine/environment.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "kernels/core/gpu.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/mpi.h"
#include "trainer/config/visit_model.h"
#include "trainer/machine/build_info.h"
#include "trainer/machine/cgroup.h"

namespace trireme {

namespace {

/// Collects the keys that determine what given weights compute.
struct Description {
  nlohmann::json json;
  bool nested = false;

  template <class T>
  void operator()(const Field& field, const T& value) {
    // A nested section starts with its type; keys that this type does not read are left out.
    const bool unread = nested && !json.is_null() && field.without_effect != nullptr;
    if (!field.training_only && !unread) json[field.key] = value;
  }
  template <class T>
  void operator()(const Field& field, const Auto<T>& value) {
    if (value) (*this)(field, *value);  // keys that are not set are left out: older models keep their descriptions
  }
  template <class E>
  void operator()(const Field& field, const OneOf<E>& value) {
    (*this)(field, value.text());
  }
  template <class Section>
  void section(const char* key, const char*, Section& part) {
    Description inner{.json = {}, .nested = true};
    visit(inner, part);
    json[key] = inner.json;
  }
};

}  // namespace

nlohmann::ordered_json describe_environment(const Context& ctx, int world_size, const MeshShape& mesh) {
  nlohmann::ordered_json gpu;  // null on a CPU
  nlohmann::ordered_json libraries = {{"mpi", mpi_library_version()}, {"gemm", gemm_library(ctx)}};
  if (ctx.device == Device::kCuda) {
    if (ctx.gpu->options().cudnn_attention) libraries["attention"] = cuda::attention_library();
    const cuda::GpuProperties& p = ctx.gpu->properties();
    gpu = {
        {"name", p.name}, {"compute_capability", concat(p.major, ".", p.minor)}, {"memory", p.memory}, {"driver", p.driver}, {"runtime", p.runtime}};
  }
  utsname system{};
  uname(&system);
  return {{"version", version()},
          {"compiler", __VERSION__},
          {"libraries", libraries},
          {"host",
           {{"name", system.nodename},
            {"system", std::string(system.sysname) + " " + system.release},
            {"cpu", cpu_model()},
            {"cores", std::thread::hardware_concurrency()}}},
          {"world_size", world_size},
          {"threads_per_rank", ctx.threads},
          {"cpu_isa", name_of(ctx.isa)},
          {"gpu", gpu},
          {"layout", describe_layout(mesh)}};
}

nlohmann::ordered_json describe_layout(const MeshShape& mesh) {
  nlohmann::ordered_json layout;
  for (const MeshAxisRow& row : shown_axes(mesh)) layout[row.name] = mesh.*row.degree;
  return layout;
}

nlohmann::json describe_model(const ModelConfig& model) {
  ModelConfig copy = model;
  Description all;
  visit(all, copy);
  all.json["qkv_bias"] = model.qkv_bias || model.preset().biases;
  // Values of the preset are left out: older models keep their descriptions.
  const ArchitecturePreset& preset = model.preset();
  if (model.block_residual() == preset.residual) all.json.erase("residual");
  if (model.mlp_activation() == preset.activation) all.json.erase("activation");
  if (model.rotated_share() == preset.rope_share) all.json.erase("rope_share");
  for (const char* key : {"attention_scale", "window_rope_theta"})
    if (all.json[key].is_null()) all.json.erase(key);
  return all.json;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

double host_memory() {
  const double all = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  return std::min(all, memory_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
}

bool has_gpu_files(const std::filesystem::path& directory) {
  constexpr std::string_view kPrefix = "nvidia";
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = file.path().filename();  // not nvidiactl, nvidia-uvm or nvidia-caps
    if (name.starts_with(kPrefix) && name.size() > kPrefix.size() && name.find_first_not_of("0123456789", kPrefix.size()) == name.npos) return true;
  }
  return false;
}

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

int threads_per_rank(int ranks_on_host, int wanted) {
  if (wanted > 0) return wanted;
  // The launcher may have bound this rank to some of the host's cores.
  return std::max(1, std::min(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, ranks_on_host)));
}

}  // namespace trireme
