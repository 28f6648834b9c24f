#include "trainer/plan/operation_costs.h"

#include <algorithm>
#include <string_view>

#include "kernels/core/dtype.h"
#include "trainer/model/dims.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/shape_rates.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

OperationCosts::OperationCosts(const Config& config, const ClusterConfig& cluster)
    : cluster_(cluster),
      stack_(effective_stack(cluster, config)),
      tensor_(place_of(config.parallel.tensor, 1, cluster, CollectiveChoice(config))),
      context_(place_of(cluster.software.context, config.parallel.tensor, cluster, CollectiveChoice(config))),
      kv_heads_(Dims(config.model, static_cast<int>(config.parallel.tensor)).local_K) {}
OperationSeconds OperationCosts::of(const std::vector<OperationRecord>& operations, bool block) const {
  OperationSeconds sum;
  for (const OperationRecord& operation : operations) {
    const bool fp8 = block && operation.kind == OperationKind::kProduct && stack_.fp8_rate > 0;
    const double seconds = fp8 ? fp8_seconds(operation) : seconds_of(operation);
    (operation.kind == OperationKind::kCollective ? sum.tensor : sum.compute) += seconds;
    if (operation.kind == OperationKind::kAttention) sum.attention += seconds;
  }
  return sum;
}

/// The factor was measured in 16 bits on a GPU.
double OperationCosts::alignment_of(const OperationRecord& product) const {
  const int64_t element = size_of(product.dtype);
  if (cluster_.device.cores || element != 2) return 1;
  const bool weight_gradient = std::string_view(product.name) == "linear_backward_weight";  // [outputs, rows] times [rows, inputs]
  return alignment_rate(product.n, weight_gradient ? product.m : product.k, element, weight_gradient);
}

double OperationCosts::fp8_seconds(const OperationRecord& product) const {
  const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n), k = static_cast<double>(product.k);
  const double seconds = product_seconds(m, n, k, size_of(product.dtype), stack_, cluster_, stack_.fp8_rate);
  // The product for weight gradients reads casts of the other two. A cast reads 16 bits, and writes 8 bits in both layouts.
  if (std::string_view(product.name) == "linear_backward_weight") return seconds;
  return seconds + elementwise_seconds(4 * (m * k + n * k), 1, cluster_);
}

/// With context parallelism a part of a sequence attends to the parts before it, whose keys and values other ranks send meanwhile. Parts are dealt out
/// so that all ranks have the same work.
double OperationCosts::context_seconds(const AttentionWork& work, double attention, int64_t element) const {
  const double parts = context_.size, head_elements = static_cast<double>(work.sequences * work.length * work.head_size);
  const bool ring = stack_.ring_attention_rate > 0;
  const double bytes = 2.0 * static_cast<double>(element * (ring ? work.heads : kv_heads_)) * head_elements * parts;
  const double gather = all_gather_seconds(context_, bytes, cluster_);
  if (!ring) return std::max(parts * attention, (work.backward ? 2 : 1) * gather);
  // Gradients of keys and values go around in fp32, each behind the next part's attention. Bytes that are read and written in 16-bit runs for each
  // other part and element of the queries, where half of the parts concern one half of the queries, the others one half of the keys and values:
  // forward, partial results are converted to fp32 (3/4 of 6), merged (3/4 of 32), half of them copied (8 / 2), keys and values copied (2 x 4);
  // backward, keys and values (2 x 4) and their fp32 gradients (2 x 8) are copied, gradients added to those of keys and values (2 x 11.5) and queries
  // (11.5): 10 bytes in place, or 13 by a copy.
  constexpr double kForwardBytes = 40.5, kBackwardBytes = 58.5;
  const double merged = (parts - 1) * (work.backward ? kBackwardBytes : kForwardBytes) * static_cast<double>(work.heads) * head_elements;
  const double gradients = work.backward ? all_gather_seconds(context_, 4.0 / static_cast<double>(element) * bytes, cluster_) : 0;
  return std::max(attention, gather) + std::max((parts - 1) * attention, gradients) + elementwise_seconds(merged, 1, cluster_);
}

double OperationCosts::seconds_of(const OperationRecord& operation) const {
  const int64_t element = size_of(operation.dtype);
  const auto size = [](int64_t extent) { return static_cast<double>(extent); };
  switch (operation.kind) {
    case OperationKind::kProduct:
      return product_seconds(size(operation.m), size(operation.n), size(operation.k), element, stack_, cluster_, alignment_of(operation)) +
             (operation.accumulates
                  ? traffic_seconds(2 * size(size_of(accumulator_of(operation.dtype))) * size(operation.m) * size(operation.n), 1, cluster_)
                  : 0);
    case OperationKind::kAttention: {
      const AttentionWork& work = operation.attention;
      const AttentionSeconds seconds = attention_seconds(size(work.sequences), size(work.length), size(work.heads), size(work.head_size), element,
                                                         stack_, cluster_, size(work.window));
      return context_seconds(work, work.backward ? seconds.backward : seconds.forward, element);
    }
    case OperationKind::kElementwise:
      return elementwise_seconds(stack_.elementwise * traffic_bytes(size(operation.bytes), element, cluster_.device.cores.has_value()), 1, cluster_);
    case OperationKind::kCollective: {
      const std::string_view name = operation.name;
      const auto seconds = name == "all_reduce" ? all_reduce_seconds : name == "reduce_scatter" ? reduce_scatter_seconds : all_gather_seconds;
      return (1 - stack_.tensor_overlap) * seconds(tensor_, size(operation.bytes), cluster_);
    }
  }
  return 0;
}

}  // namespace trireme
