#include "trainer/loop/environment.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "kernels/core/gpu.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/mpi.h"

namespace trireme {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

nlohmann::ordered_json describe_environment(const Context& ctx, int world_size, const MeshShape& mesh) {
  nlohmann::ordered_json gpu;  // null on a CPU
  if (ctx.device == Device::kCuda) {
    const cuda::GpuProperties& p = ctx.gpu->properties();
    gpu = {
        {"name", p.name}, {"compute_capability", concat(p.major, ".", p.minor)}, {"memory", p.memory}, {"driver", p.driver}, {"runtime", p.runtime}};
  }
  utsname system{};
  uname(&system);
  return {{"version", TRIREME_VERSION},
          {"compiler", __VERSION__},
          {"libraries", {{"mpi", mpi_library_version()}, {"gemm", gemm_library(ctx)}}},
          {"host",
           {{"name", system.nodename},
            {"system", std::string(system.sysname) + " " + system.release},
            {"cpu", cpu_model()},
            {"cores", std::thread::hardware_concurrency()}}},
          {"world_size", world_size},
          {"threads_per_rank", ctx.threads},
          {"cpu_isa", name_of(ctx.isa)},
          {"gpu", gpu},
          {"layout", {{"pipeline", mesh.pipeline}, {"replicate", mesh.replicate}, {"shard", mesh.shard}, {"tensor", mesh.tensor}}}};
}

nlohmann::json describe_model(const ModelConfig& model) {
  const RopeScalingConfig& scaling = model.rope_scaling;
  nlohmann::json rope_scaling = {{"type", scaling.type}};  // with what that type reads
  if (scaling.type != "none") rope_scaling["factor"] = scaling.factor;
  if (scaling.type == "llama3") {
    rope_scaling["low_frequency_factor"] = scaling.low_frequency_factor;
    rope_scaling["high_frequency_factor"] = scaling.high_frequency_factor;
    rope_scaling["original_max_positions"] = scaling.original_max_positions;
  }
  return {{"architecture", model.architecture},
          {"layers", model.layers},
          {"hidden_size", model.hidden_size},
          {"heads", model.heads},
          {"kv_heads", *model.kv_heads},
          {"head_size", *model.head_size},
          {"ffn_size", *model.ffn_size},
          {"vocab_size", *model.vocab_size},
          {"max_positions", *model.max_positions},
          {"tied_embeddings", model.tied_embeddings},
          {"qkv_bias", model.qkv_bias || model.architecture == "gpt2"},
          {"qk_norm", model.qk_norm},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", rope_scaling},
          {"norm_epsilon", model.norm_epsilon}};
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

double host_memory() { return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE)); }

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

int threads_per_rank(int ranks_on_host) {
  if (const char* wanted = std::getenv("OMP_NUM_THREADS"))
    if (const int threads = std::atoi(wanted); threads > 0) return threads;
  // A launcher may have bound this rank to a part of the host.
  return std::max(1, std::min(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, ranks_on_host)));
}

}  // namespace trireme
