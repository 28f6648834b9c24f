#include "trainer/plan/forecast_range.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "trainer/config/device_table.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/shape_rates.h"
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

struct DeviceFigure {
  const char* key;
  Auto<double> DeviceConfig::*value;
};
/// The figures on which step times depend.
constexpr std::array<DeviceFigure, 10> kDeviceFigures{{{"device.memory_bandwidth", &DeviceConfig::memory_bandwidth},
                                                       {"device.elementwise_bandwidth", &DeviceConfig::elementwise_bandwidth},
                                                       {"device.peak_flops", &DeviceConfig::peak_flops},
                                                       {"device.peak_flops_fp32", &DeviceConfig::peak_flops_fp32},
                                                       {"device.gemm_efficiency", &DeviceConfig::gemm_efficiency},
                                                       {"device.gemm_half_depth", &DeviceConfig::gemm_half_depth},
                                                       {"device.multiprocessors", &DeviceConfig::multiprocessors},
                                                       {"device.attention_efficiency", &DeviceConfig::attention_efficiency},
                                                       {"device.attention_half_length", &DeviceConfig::attention_half_length},
                                                       {"device.kernel_seconds", &DeviceConfig::kernel_seconds}}};

/// The key of a figure with which no measured run was made, because it is not that of the built-in type, or of a straggler; nullptr if there is none.
/// `least_bandwidth`: the measured devices had memory bandwidths between this share of the built-in one and all of it.
const char* unmeasured_key(const ClusterConfig& cluster, double least_bandwidth) {
  constexpr double kSame = 0.01;
  if (cluster.software.straggler != 1) return "software.straggler";
  const ClusterConfig* known = built_in(cluster.device.type);
  if (known == nullptr || cluster.device.cores) return nullptr;  // figures of CPUs are those that `bench machine` has measured
  for (const DeviceFigure& figure : kDeviceFigures) {
    const Auto<double>& value = cluster.device.*figure.value;
    const Auto<double>& built = known->device.*figure.value;
    const double usual = figure.value == &DeviceConfig::elementwise_bandwidth ? built.value_or(*known->device.memory_bandwidth) : built.value();
    const double least = figure.value == &DeviceConfig::memory_bandwidth ? least_bandwidth : 1;
    if (value && (*value < (least - kSame) * usual || *value > (1 + kSame) * usual)) return figure.key;
  }
  return nullptr;
}

/// The largest errors of the ten configurations of scripts/bench/plan.sh on two cores, and of 31 steps on one H100 or H200 whose rows are a multiple of
/// 16 bytes long and whose attention has a kernel for tensor cores (bench/).
constexpr double kErrorOnCpu = 0.14, kErrorOnOneGpu = 0.105;

/// Why no measured step of Trireme was like this one; empty if some were.
std::string unlike_measured(const Config& config, const ClusterConfig& cluster) {
  const char* const key = unmeasured_key(cluster, 1);
  if (cluster.device.cores && key) return concat("with this ", key);
  if (cluster.device.cores) return cluster.nodes == 1 ? "" : "on several CPU machines";
  if (cluster.devices() > 1) return "on several GPUs";
  if (cluster.device.type != "H100" && cluster.device.type != "H200") return concat("on a ", cluster.device.type);
  if (key) return concat("on a GPU with this ", key);
  if (size_of(precision_of(config.training).compute) != 2) return concat("on a GPU in ", config.training.precision);
  constexpr int64_t kLeastHidden = 512;  // smaller ones wait for their launches
  if (config.model.hidden_size < kLeastHidden) return concat("on a GPU with model.hidden_size below ", kLeastHidden);
  return shape_warnings(config, true).empty() ? "" : "on a GPU with sizes that it computes slowly";
}

ForecastRange own_range(const Config& config, const ClusterConfig& cluster) {
  const std::string unlike = unlike_measured(config, cluster);
  if (unlike.empty() && cluster.device.cores) return {kErrorOnCpu, "the largest error of ten configurations on two idle cores"};
  if (unlike.empty()) return {kErrorOnOneGpu, "the largest error of 31 steps of Trireme on one H100 or H200"};
  return {kErrorUnseen,
          concat("no run of Trireme ", unlike,
                 " is in the comparison; the error of nine of ten published runs of other systems if no run of their system is fitted")};
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

const char* RunSpan::first_beyond(const RunSizes& sizes) const {
  const auto beyond = [&](const Size& size) { return sizes.*size.value < least.*size.value / 2 || sizes.*size.value > 2 * most.*size.value; };
  const auto* const found = std::ranges::find_if(kSizes, beyond);
  return found == kSizes.end() ? nullptr : found->name;
}

const std::vector<SeenRuns>& seen_runs() {
  // Printed by scripts/bench/published_fit.cpp.
  static const std::vector<SeenRuns> table = {
      {"deepspeed-zero3", 4, {{384, 12288, 2048, 2048}, {1536, 20480, 2048, 8192}}, false, 1, true, 0.403},
      {"llm-foundry", 88, {{8, 768, 512, 4096}, {512, 8192, 65536, 98304}}, false, 1, true, 0.06},
      {"llm.c", 3, {{8, 768, 1024, 16384}, {8, 1600, 1024, 65536}}, false, 1, false, 0.093},
      {"megatron-2021", 17, {{8, 2304, 2048, 2048}, {3072, 25600, 2048, 32768}}, false, 1, true, 0.105},
      {"megatron-2023", 8, {{256, 12288, 2048, 4096}, {12288, 20480, 2048, 8192}}, false, 1, false, 0.093},
      {"megatron-2024", 52, {{8, 2048, 2048, 2048}, {6144, 18432, 8192, 16384}}, true, 1, true, 0.084},
      {"megatron-deepspeed", 73, {{320, 12288, 2048, 2048}, {3360, 20480, 2048, 16384}}, false, 1, true, 0.085},
      {"nanotron", 18, {{8, 2048, 4096, 4096}, {512, 8192, 4096, 32768}}, false, 1, true, 0.212},
      {"pytorch-fsdp", 2, {{8, 768, 1024, 12288}, {16, 2048, 2048, 16384}}, false, 1, true, 0.388},
      {"torchtitan", 28, {{8, 4096, 8192, 16384}, {512, 16384, 262144, 131072}}, true, 0.7, true, 0.24},
      {"zero-bubble", 56, {{8, 2304, 1024, 1024}, {32, 6144, 1024, 6144}}, false, 1, true, 0.056},
  };
  return table;
}

double bandwidth_share(const DeviceConfig& device) {
  const ClusterConfig* known = built_in(device.type);
  return known == nullptr ? 1 : *device.memory_bandwidth / *known->device.memory_bandwidth;
}

ForecastRange forecast_range(const Config& config, const ClusterConfig& cluster) {
  const std::string& stack = cluster.software.stack;
  if (stack_of(stack).own) return own_range(config, cluster);
  const auto seen = std::ranges::find(seen_runs(), stack, &SeenRuns::stack);
  if (seen == seen_runs().end())
    return {kErrorUnseen,
            concat("no step time of ", stack, " was published; the error of nine of ten runs of other systems if no run of their system is fitted")};
  const std::string& device = cluster.device.type;
  const bool known_device = device.starts_with("A100") || device == "H100" || device == "H200";
  const char* beyond = !known_device                                  ? "device type"
                       : cluster.software.fp8 != "none" && !seen->fp8 ? "precision"
                                                                      : unmeasured_key(cluster, seen->least_bandwidth);
  if (!beyond) beyond = seen->span.first_beyond(sizes_of_run(config, cluster));
  if (beyond)
    return {std::max(kErrorBeyond, seen->error), concat("none of the ", seen->runs, " published runs of ", stack, " has nearly this ", beyond,
                                                        "; the error of nine of ten runs that no other run of their system resembles")};
  if (!seen->of_system)
    return {seen->error, concat(stack, " has only ", seen->runs,
                                " published runs; the error of nine of ten runs of all systems if their own table is not fitted")};
  return {seen->error, concat("the error of nine of ten of the ", seen->runs, " published runs of ", stack, " if their own table is not fitted")};
}

}  // namespace trireme
