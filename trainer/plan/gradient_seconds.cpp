#include "trainer/plan/gradient_seconds.h"

#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/declare.h"
#include "trainer/plan/kernel_time.h"

namespace trireme {
namespace {

double factor_bytes(const Config& config) {
  int64_t summed = 0, all = 0;
  for (const ParamSpec& spec : parameters_of(config.model, {0, static_cast<int>(config.parallel.tensor)}, config.parallel.sequence_parallel)) {
    if (!spec.trainable) continue;
    summed += summed_elements(spec, config.training.compression.rank);
    all += spec.box.numel();
  }
  return static_cast<double>(summed * size_of(precision_of(config.training).gradient)) / static_cast<double>(all);
}

double bytes_in_message(const EncodingOptions& encoding) {
  constexpr int64_t kMany = 1 << 20;
  return static_cast<double>(encoded_bytes(encoding, kMany)) / static_cast<double>(kMany);
}

}  // namespace

double gradient_message_bytes(const Config& config, const Stack& stack) {
  const EncodingOptions encoding = compression_of(config).encoding;
  if (encoding.encoding == Encoding::kNone) return stack.reduce_bytes;
  if (encoding.encoding == Encoding::kLowRank) return factor_bytes(config);
  return bytes_in_message(encoding);
}

double parameter_message_bytes(const Config& config) {
  const EncodingOptions encoding = parameter_encoding_of(config);
  return encoding.encoding == Encoding::kNone ? static_cast<double>(size_of(precision_of(config.training).compute)) : bytes_in_message(encoding);
}

namespace {

double primary_gather_seconds(const Config& config, const GroupPlacement& shard, double elements, const ClusterConfig& cluster) {
  const double message = parameter_message_bytes(config), sent = all_gather_seconds(shard, message * elements, cluster);
  if (config.training.compression.parameters == ParameterEncoding::kNone || shard.size <= 1) return sent;
  const Precision precision = precision_of(config.training);
  const auto master = static_cast<double>(size_of(precision.master)), element = static_cast<double>(size_of(precision.compute));
  // Decoding adds to zeros, in another dtype than the layers' by way of a buffer.
  const double decoded = 3 * master + (precision.master == precision.compute ? 0 : master + element);
  return sent + traffic_seconds(elements / shard.size * (master + message) + elements * (message + decoded), 3, cluster);
}

}  // namespace

double gather_seconds(const Config& config, const GroupPlacement& shard, double elements, const ClusterConfig& cluster) {
  const double primary = primary_gather_seconds(config, shard, elements, cluster);
  if (config.parallel.secondary_shards == 0) return primary;
  const auto element = static_cast<double>(size_of(precision_of(config.training).compute)), gathers = 2.0 * microbatches_of(config);
  const GroupPlacement near = place_of(config.parallel.secondary_shards, config.parallel.tensor, cluster, CollectiveChoice(config));
  // The first of them also copies this rank's part.
  const double once = primary + traffic_seconds(2 * element * elements / near.size, 1, cluster);
  return (once + (gathers - 1) * all_gather_seconds(near, element * elements, cluster)) / gathers;
}

GradientSeconds::GradientSeconds(const Config& config, const Stack& stack, const ClusterConfig& cluster)
    : cluster_(cluster),
      data_(place_of(degree_of(mesh_shape(config.parallel), MeshAxis::kData), stride_of(mesh_shape(config.parallel), MeshAxis::kData), cluster,
                     CollectiveChoice(config))),
      factors_(config.training.compression.method == CompressionMethod::kPowerSgd),
      robust_(is_robust(config.security)),
      all_products_(needs_all_products(config.security.aggregation.rule.value())),
      feedback_(config.training.compression.error_feedback),
      compressed_scatter_(needs_full_gradients(config.training.compression)),
      compressed_replicas_(config.training.compression.method != CompressionMethod::kNone),
      plain_bytes_(stack.reduce_bytes),
      message_bytes_(gradient_message_bytes(config, stack)),
      element_bytes_(static_cast<double>(size_of(precision_of(config.training).gradient))),
      shards_(zero_policy(config.parallel).shard) {}

/// Encoding reads the gradient and the error, and writes the next error and the message; decoding reads the message and adds to the sum.
double GradientSeconds::coding(double encoded, double decoded) const {
  return traffic_seconds(encoded * (3 * element_bytes_ + message_bytes_) + decoded * (2 * element_bytes_ + message_bytes_), 2, cluster_);
}

/// Two products read the gradient, and the owner adds their result to zeros. With error feedback, adding the error, subtracting what is sent and keeping the
/// next error read and write it seven times more, and the owner's part twice.
double GradientSeconds::factors(double elements) const {
  if (data_.size <= 1) return 0;
  const double passes = feedback_ ? 9 + 5 / shards_ : 2 + 3 / shards_;
  return all_reduce_seconds(data_, message_bytes_ * elements, cluster_) + traffic_seconds(elements * element_bytes_ * passes, 4, cluster_);
}

/// On the owner, of the copies that it has of its piece, as many elements as a unit: the squares and the median read all, inner products read each copy
/// once for each data rank or, of distances from the median alone, once, and the result reads all again.
double GradientSeconds::rule(double elements) const {
  const double passes = all_products_ ? 3 + data_.size : 4;
  return traffic_seconds(passes * elements * element_bytes_, 4, cluster_);
}

double GradientSeconds::scatter(const GroupPlacement& shard, double elements) const {
  if (factors_) return factors(elements);
  if (robust_ && compressed_scatter_)
    return all_to_all_seconds(data_, message_bytes_ * elements, cluster_) + coding(elements, elements) + rule(elements);
  if (robust_) return all_to_all_seconds(data_, element_bytes_ * elements, cluster_) + rule(elements);
  if (!compressed_scatter_) return reduce_scatter_seconds(shard, plain_bytes_ * elements, cluster_);
  if (shard.size <= 1) return 0;
  return all_to_all_seconds(shard, message_bytes_ * elements, cluster_) + coding(elements, elements);
}

double GradientSeconds::replicas(const GroupPlacement& replicate, double elements) const {
  if (factors_) return 0;
  if (robust_) return all_gather_seconds(replicate, element_bytes_ * elements, cluster_);
  if (!compressed_replicas_) return all_reduce_seconds(replicate, plain_bytes_ * elements, cluster_);
  if (replicate.size <= 1) return 0;
  return all_to_all_seconds(replicate, message_bytes_ * elements, cluster_) + all_gather_seconds(replicate, message_bytes_ * elements, cluster_) +
         coding(elements * (1 + 1 / replicate.size), 2 * elements);
}

double GradientSeconds::tied(const GroupPlacement& ends, double elements) const {
  return all_reduce_seconds(ends, plain_bytes_ * elements / (robust_ ? 1 : shards_), cluster_);
}

}  // namespace trireme
