#include "trainer/doctor/needs.h"

#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/memory.h"
#include "trainer/plan/analysis/analysis.h"

namespace trireme::doctor {

Needs needs_of(const Config& config) {
  ClusterConfig any;  // the bytes of checkpoints do not depend on it
  any.device.type = "cpu";
  const double steps = config.training.steps ? static_cast<double>(*config.training.steps) : 1e9;
  const SavePlan saving = save_plan(config, resolve_cluster(any), 1, steps);
  return {.ranks = mesh_shape(config.parallel).world(),
          .gpu = config.run.device == DeviceType::kCuda,
          .may_use_gpu = config.run.device != DeviceType::kCpu,
          .ranks_per_gpu = static_cast<int>(config.run.ranks_per_gpu),
          .isa = config.kernels.cpu_isa,
          .precision = config.training.precision.value(),
          .checkpoint = saving.bytes,
          .storage = saving.storage,
          .encrypted = is_encrypted(config.security)};
}

double forecast_bytes(const Config& config, int rank) {
  const auto peak = static_cast<double>(forecast_memory(config, rank, mesh_shape(config.parallel).world()).peak_total);
  return config.run.device == DeviceType::kCuda ? peak + static_cast<double>(runtime_bytes(config, rank).total()) : peak;
}

}  // namespace trireme::doctor
