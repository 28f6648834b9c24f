#include "trainer/plan/update_costs.h"

#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/ops/muon.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/kernel_time.h"

namespace trireme {

double update_bytes(const Config& config, bool of_matrix) {
  const Precision precision = precision_of(config.training);
  const int64_t states = state_count(config.training, of_matrix);
  const int64_t accesses = 4 + 2 * states + (config.training.ema.decay ? 1 : 0) + (of_matrix ? 2 : 0);
  return static_cast<double>(accesses * size_of(precision.master) + (precision.compute == precision.master ? 0 : size_of(precision.compute)));
}

std::vector<OperationRecord> matrix_operations(const MatrixShape& shape, DType dtype) {
  Arena arena(Device::kMeta);
  OperationLog log;
  Context ctx{.device = Device::kMeta, .arena = &arena, .log = &log};
  newton_schulz(ctx, Tensor::empty(ctx, {shape[0], shape[1]}, dtype, MemoryCategory::kWorkspace), 1);
  return log.take();
}

double orthogonalize_seconds(const Config& config, const ClusterConfig& cluster, const RankMatrices& matrices) {
  if (matrices.seconds.empty()) return 0;
  const MeshShape mesh = mesh_shape(config.parallel);
  const int shards = degree_of(mesh, MeshAxis::kShard);
  const DealtMatrices dealt = deal(matrices.shapes, newton_schulz_flops, shards, mesh.tensor);
  std::vector<double> load(static_cast<size_t>(shards * mesh.tensor));
  for (size_t i = 0; i < dealt.owner.size(); ++i) load[static_cast<size_t>(dealt.owner[i])] += matrices.seconds[i];
  const auto exchange = [&, element = static_cast<double>(size_of(exchanged_dtype(precision_of(config.training))))](MeshAxis axis, double elements) {
    return all_to_all_seconds(place_of(degree_of(mesh, axis), stride_of(mesh, axis), cluster, CollectiveChoice(config)), element * elements, cluster);
  };
  return std::ranges::max(load) + 2 * (exchange(MeshAxis::kShard, dealt.most_parts) + exchange(MeshAxis::kTensor, dealt.most_matrices));
}

double server_seconds(const Config& config, const ClusterConfig& cluster, double owned) {
  if (!is_asynchronous(config.training) || shares_weights(config.training)) return 0;
  const MeshShape mesh = mesh_shape(config.parallel);
  const GroupPlacement islands = place_of(mesh.islands, stride_of(mesh, MeshAxis::kIslands), cluster, CollectiveChoice(config));
  const Precision precision = precision_of(config.training);
  const double weights = all_gather_seconds(islands, owned * static_cast<double>(size_of(precision.master)), cluster);
  if (averages_elastically(config.training)) return 2 * weights / static_cast<double>(config.training.asynchronous.every);
  return all_gather_seconds(islands, owned * static_cast<double>(size_of(precision.gradient)), cluster) + weights;
}

OuterSeconds outer_seconds(const Config& config, const ClusterConfig& cluster, double owned, double compute) {
  constexpr double kAccesses = 14;  // a copy, four tensors that are read and written, one that is written, three sums of squares
  const LocalConfig& local = config.training.local;
  if (!local.steps) return {};
  const MeshShape mesh = mesh_shape(config.parallel);
  const GroupPlacement islands = place_of(mesh.islands, stride_of(mesh, MeshAxis::kIslands), cluster, CollectiveChoice(config));
  const double bytes = owned * static_cast<double>(size_of(precision_of(config.training).master));
  const auto round = static_cast<double>(*local.steps), fragments = static_cast<double>(local.fragments);
  const double sum = all_reduce_seconds(islands, bytes / fragments, cluster);
  const double hidden = std::min(sum, config.parallel.overlap ? static_cast<double>(local.delay) * compute : 0);
  return {fragments * (sum - hidden) / round, fragments * hidden / round, traffic_seconds(kAccesses * bytes, 1, cluster) / round};
}

}  // namespace trireme
