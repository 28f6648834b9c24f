#include "trainer/plan/forecast_range.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

struct Size {
  const char* name;
  double RunSizes::*value;
};
constexpr std::array<Size, 4> kSizes{{{"number of devices", &RunSizes::devices},
                                      {"hidden size", &RunSizes::hidden},
                                      {"sequence length", &RunSizes::sequence},
                                      {"number of tokens in a micro-batch", &RunSizes::microbatch}}};

bool is_near(const RunSpan& span, const RunSizes& sizes, const Size& size) {
  return sizes.*size.value >= span.least.*size.value / 2 && sizes.*size.value <= 2 * span.most.*size.value;
}

/// The largest errors of the ten configurations of scripts/bench/plan.sh on two cores, and of 31 steps on one H100 or H200 whose rows are a multiple of
/// 16 bytes long and whose attention has a kernel for tensor cores (bench/).
constexpr double kErrorOnCpu = 0.14, kErrorOnOneGpu = 0.105;

ForecastRange own_range(const Config& config, const ClusterConfig& cluster) {
  if (cluster.device.cores) return {kErrorOnCpu, "the largest error of ten configurations on two idle cores"};
  const bool measured = cluster.device.type == "H100" || cluster.device.type == "H200";
  if (cluster.devices() == 1 && measured && config.model.hidden_size >= 512)
    return {kErrorOnOneGpu, "the largest error of 31 steps of Trireme on one H100 or H200"};
  return {kErrorUnseen, concat("no run of Trireme on ", cluster.devices() > 1 ? "several GPUs" : "such a GPU",
                               " was measured; 90 % of the published runs of other systems lie this near if no run of their system is fitted")};
}

}  // namespace

RunSizes sizes_of_run(const Config& config, const ClusterConfig& cluster) {
  const TrainingConfig& t = config.training;
  const auto size = [](int64_t value) { return static_cast<double>(value); };
  return {size(cluster.devices()), size(config.model.hidden_size), size(t.sequence_length * cluster.software.context),
          size(t.sequence_length * t.micro_batch_size)};
}

void RunSpan::add(const RunSizes& sizes) {
  for (const Size& size : kSizes) {
    least.*size.value = std::min(least.*size.value, sizes.*size.value);
    most.*size.value = std::max(most.*size.value, sizes.*size.value);
  }
}

bool RunSpan::is_near(const RunSizes& sizes) const {
  return std::ranges::all_of(kSizes, [&](const Size& size) { return trireme::is_near(*this, sizes, size); });
}

const std::vector<SeenRuns>& seen_runs() {
  // Printed by scripts/bench/published_fit.cpp. Where fewer than 20 runs lie within the span of the other tables, the error is that of all systems, 0.099,
  // if it is larger.
  static const std::vector<SeenRuns> table = {
      {"deepspeed-zero3", 4, {{384, 12288, 2048, 2048}, {1536, 20480, 2048, 8192}}, 0.41},
      {"llm-foundry", 88, {{8, 768, 512, 4096}, {512, 8192, 65536, 98304}}, 0.062},
      {"llm.c", 3, {{8, 768, 1024, 16384}, {8, 1600, 1024, 65536}}, 0.099},
      {"megatron-2021", 17, {{8, 2304, 2048, 2048}, {3072, 25600, 2048, 32768}}, 0.099},
      {"megatron-2023", 8, {{256, 12288, 2048, 4096}, {12288, 20480, 2048, 8192}}, 0.099},
      {"megatron-2024", 52, {{8, 2048, 2048, 2048}, {6144, 18432, 8192, 16384}}, 0.085},
      {"megatron-deepspeed", 73, {{320, 12288, 2048, 2048}, {3360, 20480, 2048, 16384}}, 0.087},
      {"nanotron", 18, {{8, 2048, 4096, 4096}, {512, 8192, 4096, 32768}}, 0.215},
      {"pytorch-fsdp", 2, {{8, 768, 1024, 12288}, {16, 2048, 2048, 16384}}, 0.38},
      {"torchtitan", 28, {{8, 4096, 8192, 16384}, {512, 16384, 262144, 131072}}, 0.315},
      {"zero-bubble", 56, {{8, 2304, 1024, 1024}, {32, 6144, 1024, 6144}}, 0.071},
  };
  return table;
}

ForecastRange forecast_range(const Config& config, const ClusterConfig& cluster) {
  const std::string& stack = cluster.software.stack;
  if (stack_of(stack).own) return own_range(config, cluster);
  const auto seen = std::ranges::find_if(seen_runs(), [&](const SeenRuns& runs) { return stack == runs.stack; });
  if (seen == seen_runs().end())
    return {kErrorUnseen,
            concat("no step time of ", stack, " was published; 90 % of the runs of other systems lie this near if no run of their system is fitted")};
  const RunSizes sizes = sizes_of_run(config, cluster);
  for (const Size& size : kSizes)
    if (!is_near(seen->span, sizes, size))
      return {std::max(seen->error, kErrorBeyond),
              concat("no published run of ", stack, " has such a ", size.name, ": ", seen->span.least.*size.value, " to ",
                     seen->span.most.*size.value, "; 90 % of the runs that resemble no other one of their system lie this near")};
  return {seen->error, concat("90 % of the published runs like this lie this near if their table is not fitted; ", seen->runs, " runs of ", stack)};
}

}  // namespace trireme
