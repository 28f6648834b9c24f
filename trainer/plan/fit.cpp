#include "trainer/plan/fit.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "trainer/config/cluster_visit.h"
#include "trainer/files/table.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

constexpr double kNoLimit = 1e30;  ///< for a rate that should not limit

/// The factor c such that c x model + fixed equals the measured time on average, and the remaining error of single samples. Uses means of times, so
/// that intermittent slowdowns of the machine affect the figures as they affect training.
struct Scale {
  double factor = 0, error = 0;
};
struct Share {  ///< relative to the measured time
  double model = 0, fixed = 0;
};
Scale fit_scale(const std::vector<Share>& shares) {
  Scale scale;
  for (const Share& share : shares) scale.factor += (1 - share.fixed) / share.model / static_cast<double>(shares.size());
  scale.factor = std::max(scale.factor, 1e-12);
  for (const Share& share : shares) scale.error += std::abs(std::log(std::max((1 - share.fixed) / share.model / scale.factor, 1e-12)));
  return scale;
}

/// Minimises `error` over [0, highest]: a coarse grid, then golden-section search, as the error has a single minimum.
double least(double highest, const std::function<double(double)>& error) {
  constexpr int kLooks = 64;
  constexpr double kGolden = 0.6180339887498949;
  int best = 0;
  const auto at = [&](int look) { return highest * std::pow(static_cast<double>(look) / kLooks, 3); };
  for (int look = 1; look <= kLooks; ++look)
    if (error(at(look)) < error(at(best))) best = look;
  double low = at(std::max(best - 1, 0)), high = at(std::min(best + 1, kLooks));
  for (int i = 0; i < 100; ++i) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    (error(a) <= error(b) ? high : low) = error(a) <= error(b) ? b : a;
  }
  return (low + high) / 2;
}

double bandwidth_of(const std::vector<TrafficSample>& samples) {
  double bytes = 0, seconds = 0;
  for (const TrafficSample& sample : samples) {
    bytes += sample.bytes;
    seconds += sample.seconds;
  }
  return bytes / seconds;
}

/// A machine with one rank on one core, as in the samples; only bandwidths and kernel time are set.
ClusterConfig unfitted(const MachineSamples& samples) {
  ClusterConfig cluster;
  cluster.name = samples.name;
  cluster.devices_per_node = 1;
  cluster.device.type = "cpu";
  cluster.device.cores = 1;
  cluster.device.memory = samples.memory;
  cluster.device.kernel_seconds = samples.kernel_seconds;
  cluster.device.multiprocessors = 1;
  cluster.device.gemm_efficiency = cluster.device.attention_efficiency = 1;
  cluster.device.attention_half_length = 0;
  cluster.node_link = cluster.network = {.bandwidth = kNoLimit, .latency = 0, .ramp = 0};
  cluster.nvls_bandwidth = 0;
  cluster.device.memory_bandwidth = bandwidth_of(samples.memory_traffic);
  cluster.device.elementwise_bandwidth = bandwidth_of(samples.elementwise);
  return cluster;
}

/// FLOP/s of a core for products of `element_bytes`: asymptotic rate for large depth, and the highest rate measured.
struct Rates {
  double fitted = 0, greatest = 0, error = 0;
};
Rates product_rates(const MachineSamples& samples, int64_t element_bytes, double half_depth, ClusterConfig cluster) {
  cluster.device.gemm_half_depth = half_depth;
  cluster.device.peak_flops = cluster.device.peak_flops_fp32 = 1;
  Rates rates;
  std::vector<Share> shares;
  for (const ProductSample& sample : samples.products) {
    if (sample.element_bytes != element_bytes) continue;
    const double fixed = sample.accumulates ? traffic_seconds(kAccumulateBytes * sample.n * sample.m, 1, cluster) : 0;
    shares.push_back({(model_seconds(sample, cluster) - fixed) / sample.seconds, fixed / sample.seconds});
    rates.greatest = std::max(rates.greatest, 2 * sample.m * sample.n * sample.k / sample.seconds);
  }
  const Scale scale = fit_scale(shares);
  rates.fitted = 1 / scale.factor;
  rates.error = scale.error;
  return rates;
}

void fit_products(const MachineSamples& samples, ClusterConfig& cluster) {
  constexpr double kDeepest = 4096;
  const auto both = [&](double depth) { return product_rates(samples, 2, depth, cluster).error + product_rates(samples, 4, depth, cluster).error; };
  DeviceConfig& device = cluster.device;
  const double depth = least(kDeepest, both);
  const Rates narrow = product_rates(samples, 2, depth, cluster), wide = product_rates(samples, 4, depth, cluster);
  device.gemm_half_depth = depth;
  device.peak_flops = std::max(narrow.fitted, narrow.greatest);
  device.gemm_efficiency = narrow.fitted / *device.peak_flops;
  device.peak_flops_fp32 = wide.fitted / *device.gemm_efficiency;
}

void fit_attention(const MachineSamples& samples, ClusterConfig& cluster) {
  constexpr double kLongest = 16384;
  const auto fitted = [&](double length) {
    ClusterConfig trial = cluster;
    trial.device.attention_half_length = length;
    trial.device.kernel_seconds = 0;
    std::vector<Share> shares;
    for (const AttentionSample& sample : samples.attention) {
      const AttentionSample model = model_seconds(sample, trial);
      shares.push_back({model.forward / sample.forward, 0});
      shares.push_back({model.backward / sample.backward, 0});
    }
    return fit_scale(shares);
  };
  const double length = least(kLongest, [&](double trial) { return fitted(trial).error; });
  cluster.device.attention_half_length = length;
  cluster.device.attention_efficiency = std::min(1.0, 1 / fitted(length).factor);
}

/// Fits core_scaling, the loss when all cores share an operation, such that the mean ratio of measured to model time is 1. Slowdowns are capped at
/// the number of cores: an operation slower than on one core was disturbed, since threads lose a whole time slice if another program takes a core.
void fit_scaling(const MachineSamples& samples, ClusterConfig& cluster) {
  cluster.device.core_scaling = 1;
  if (samples.shared_products.empty() || samples.cores <= 1) return;
  double slower = 0;
  for (const ProductSample& sample : samples.shared_products)
    slower += std::min(sample.seconds / model_seconds(sample, cluster), samples.cores) / static_cast<double>(samples.shared_products.size());
  cluster.device.core_scaling = std::clamp(1 - std::log(slower) / std::log(samples.cores), 0.0, 1.0);
}

/// Fits latency and bandwidth of seconds = latency x a + b / bandwidth by normal equations. Errors are relative to the model of the previous round,
/// because errors relative to the measurement would favour the fastest samples. A value outside the range of a cluster file is clamped, and the other
/// one is fitted for that value.
void fit_link(const MachineSamples& samples, ClusterConfig& cluster) {
  constexpr int kRounds = 20;
  constexpr double kLongest = 1;  // seconds per hop
  ClusterConfig only_latency = cluster, only_bandwidth = cluster;
  only_latency.node_link.latency = 1;
  only_bandwidth.node_link.bandwidth = 1;
  for (int round = 0; round < kRounds; ++round) {
    double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
    for (const LinkSample& sample : samples.links) {
      const double scale = round == 0 ? sample.seconds : model_seconds(sample, cluster);
      const double a = model_seconds(sample, only_latency) / scale, b = model_seconds(sample, only_bandwidth) / scale, s = sample.seconds / scale;
      aa += a * a;
      ab += a * b;
      bb += b * b;
      a1 += a * s;
      b1 += b * s;
    }
    const auto a_byte_beside = [&](double latency) { return std::clamp((b1 - latency * ab) / bb, 1 / kMostBytes, 1 / kLeastBytes); };
    const auto latency_beside = [&](double a_byte) { return std::clamp((a1 - a_byte * ab) / aa, 0.0, kLongest); };
    const double determinant = aa * bb - ab * ab;
    const double latency = determinant > 0 ? (a1 * bb - b1 * ab) / determinant : 0;
    const double a_byte = a_byte_beside(std::clamp(latency, 0.0, kLongest));
    cluster.node_link.latency = latency_beside(a_byte);
    cluster.node_link.bandwidth = std::clamp(1 / a_byte, kLeastBytes, kMostBytes);
  }
}

/// Clamps figures from implausible measurements (e.g. a stalled machine) to the range of a cluster file.
void keep_in_range(DeviceConfig& device) {
  const auto within = [](Auto<double>& figure, double least, double most) { figure = std::clamp(*figure, least, most); };
  within(device.memory, kLeastBytes, kMostBytes);
  within(device.memory_bandwidth, kLeastBytes, kMostBytes);
  within(device.elementwise_bandwidth, kLeastBytes, kMostBytes);
  within(device.peak_flops, kLeastFlops, kMostFlops);
  within(device.peak_flops_fp32, kLeastFlops, kMostFlops);
  within(device.kernel_seconds, 0, 1);
}

const char* name_of(LinkOperation operation) {
  return operation == LinkOperation::kAllReduce ? "all-reduce" : operation == LinkOperation::kAllGather ? "all-gather" : "send";
}

std::string text_of(const ProductSample& s) {
  return concat("product ", s.m, " x ", s.k, " x ", s.n, s.element_bytes == 2 ? ", bf16" : ", fp32", s.accumulates ? ", accumulated" : "");
}

/// Residuals of the single-core samples. `cluster`: the fitted machine with one core.
std::vector<Residual> operation_residuals(const MachineSamples& samples, const ClusterConfig& cluster) {
  std::vector<Residual> all;
  for (const ProductSample& s : samples.products) all.push_back({text_of(s), s.seconds, model_seconds(s, cluster)});
  for (const AttentionSample& s : samples.attention) {
    const AttentionSample model = model_seconds(s, cluster);
    const std::string shape =
        concat(s.sequences, " x ", s.length, ", ", s.heads, " heads of ", s.head_size, s.element_bytes == 2 ? ", bf16" : ", fp32");
    all.push_back({"attention " + shape, s.forward, model.forward});
    all.push_back({"attention backward, same shape", s.backward, model.backward});
  }
  for (const TrafficSample& s : samples.elementwise) all.push_back({s.name, s.seconds, elementwise_seconds(s.bytes, 1, cluster)});
  for (const TrafficSample& s : samples.memory_traffic) all.push_back({s.name, s.seconds, traffic_seconds(s.bytes, 1, cluster)});
  return all;
}

void add_link_residuals(const MachineSamples& samples, const ClusterConfig& cluster, std::vector<Residual>& all) {
  for (const LinkSample& s : samples.links)
    all.push_back({concat(name_of(s.operation), " of ", number_text(s.bytes), " bytes, ", s.ranks, " ranks"), s.seconds, model_seconds(s, cluster)});
}

}  // namespace

double model_seconds(const ProductSample& s, const ClusterConfig& cluster) {
  return product_seconds(s.m, s.n, s.k, s.element_bytes, stack_of("trireme"), cluster) +
         (s.accumulates ? traffic_seconds(kAccumulateBytes * s.n * s.m, 1, cluster) : 0);
}

AttentionSample model_seconds(const AttentionSample& s, const ClusterConfig& cluster) {
  const AttentionSeconds seconds = attention_seconds(s.sequences, s.length, s.heads, s.head_size, s.element_bytes, stack_of("trireme"), cluster);
  AttentionSample model = s;
  model.forward = seconds.forward;
  model.backward = seconds.backward;
  return model;
}

double model_seconds(const LinkSample& s, const ClusterConfig& cluster) {
  const ClusterConfig shared = with_ranks_sharing_cores(cluster, s.ranks);
  const GroupPlacement group = place_of(s.ranks, 1, shared);
  const double turns = std::max(1.0, 1 / shared.cores_per_rank());
  switch (s.operation) {
    case LinkOperation::kAllReduce: return turns * all_reduce_seconds(group, s.bytes, shared);
    case LinkOperation::kAllGather: return turns * all_gather_seconds(group, s.bytes, shared);
    case LinkOperation::kSend: return turns * transfer_seconds(0, 1, 1, s.bytes, shared);
  }
  return 0;
}

FittedMachine fit_machine(const MachineSamples& samples) {
  const auto has = [&](int64_t element_bytes) {
    return std::ranges::any_of(samples.products, [&](const ProductSample& sample) { return sample.element_bytes == element_bytes; });
  };
  if (!has(2) || !has(4) || samples.attention.empty() || samples.elementwise.empty() || samples.memory_traffic.empty() || samples.links.empty())
    throw ConfigError(
        "cannot fit the machine: samples are missing; needed: bf16 and fp32 products, attention, elementwise and memory-bound kernels, and "
        "collectives");
  FittedMachine fitted{unfitted(samples), {}};
  fit_products(samples, fitted.cluster);
  fit_attention(samples, fitted.cluster);
  fitted.residuals = operation_residuals(samples, fitted.cluster);
  fitted.cluster.device.cores = samples.cores;
  fit_scaling(samples, fitted.cluster);
  for (const ProductSample& s : samples.shared_products)
    fitted.residuals.push_back({text_of(s) + ", all cores", s.seconds, model_seconds(s, fitted.cluster)});
  keep_in_range(fitted.cluster.device);
  fit_link(samples, fitted.cluster);
  fitted.cluster.network = fitted.cluster.node_link;
  add_link_residuals(samples, fitted.cluster, fitted.residuals);
  fitted.cluster = with_ranks_sharing_cores(fitted.cluster, static_cast<int64_t>(samples.cores));
  return fitted;
}

std::string residual_text(const std::vector<Residual>& residuals) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Residual& r : residuals)
    rows.push_back({{"sample", r.sample}, {"microseconds", r.measured * 1e6}, {"model", r.model * 1e6}, {"ratio", r.model / r.measured}});
  return table_of(rows);
}

}  // namespace trireme
