#include "trainer/plan/gradient_seconds.h"

#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/kernel_time.h"

namespace trireme {

double gradient_message_bytes(const Config& config, const Stack& stack) {
  const EncodingOptions encoding = compression_of(config).encoding;
  if (encoding.encoding == Encoding::kNone) return stack.reduce_bytes;
  constexpr int64_t kMany = 1 << 20;
  return static_cast<double>(encoded_bytes(encoding, kMany)) / static_cast<double>(kMany);
}

GradientSeconds::GradientSeconds(const Config& config, const Stack& stack, const ClusterConfig& cluster)
    : cluster_(cluster),
      compressed_scatter_(needs_full_gradients(config.training.compression)),
      compressed_replicas_(config.training.compression.method != Encoding::kNone),
      plain_bytes_(stack.reduce_bytes),
      message_bytes_(gradient_message_bytes(config, stack)),
      element_bytes_(static_cast<double>(size_of(precision_of(config.training).gradient))) {}

/// Encoding reads the gradient and the error, and writes the next error and the message; decoding reads the message and adds to the sum.
double GradientSeconds::coding(double encoded, double decoded) const {
  return traffic_seconds(encoded * (3 * element_bytes_ + message_bytes_) + decoded * (2 * element_bytes_ + message_bytes_), 2, cluster_);
}

double GradientSeconds::scatter(const GroupPlacement& shard, double elements) const {
  if (!compressed_scatter_) return reduce_scatter_seconds(shard, plain_bytes_ * elements, cluster_);
  if (shard.size <= 1) return 0;
  return all_to_all_seconds(shard, message_bytes_ * elements, cluster_) + coding(elements, elements);
}

double GradientSeconds::replicas(const GroupPlacement& replicate, double elements) const {
  if (!compressed_replicas_) return all_reduce_seconds(replicate, plain_bytes_ * elements, cluster_);
  if (replicate.size <= 1) return 0;
  return all_to_all_seconds(replicate, message_bytes_ * elements, cluster_) + all_gather_seconds(replicate, message_bytes_ * elements, cluster_) +
         coding(elements * (1 + 1 / replicate.size), 2 * elements);
}

}  // namespace trireme
