#include "trainer/plan/kernel_time.h"

#include <algorithm>
#include <cmath>

#include "trainer/plan/shape_rates.h"

namespace trireme {
namespace {

/// Threads of one operation of a rank: its number of whole cores, or one if several ranks share a core.
double threads(const ClusterConfig& cluster) { return std::max(1.0, std::floor(cluster.cores_per_rank())); }

/// Speed of a rank relative to one core. All workers of a node slow each other down: the threads of an operation and the ranks, including ranks that
/// share a core.
double speedup(const ClusterConfig& cluster) {
  const DeviceConfig& d = cluster.device;
  if (!d.cores) return 1;
  const double workers = threads(cluster) * static_cast<double>(cluster.devices_per_node);
  return threads(cluster) * std::pow(workers, d.core_scaling.value_or(1) - 1);
}

double peak(int64_t element_bytes, bool tf32, const ClusterConfig& cluster) {
  return speedup(cluster) * peak_flops(element_bytes, tf32, cluster.device);
}

double memory_bandwidth(const ClusterConfig& cluster) { return speedup(cluster) * *cluster.device.memory_bandwidth; }

}  // namespace

double peak_flops(int64_t element_bytes, bool tf32, const DeviceConfig& device) {
  if (element_bytes == 4 && tf32) return *device.peak_flops / 2;
  return element_bytes == 2 ? *device.peak_flops : *device.peak_flops_fp32 * 4 / static_cast<double>(element_bytes);
}

double product_seconds(double m, double n, double k, int64_t element_bytes, const Stack& stack, const ClusterConfig& cluster, double alignment) {
  const DeviceConfig& d = cluster.device;
  const double rounds = std::ceil(m / 128) * std::ceil(n / 128) / *d.multiprocessors, filled = d.cores ? 1 : rounds / (rounds + 0.5);
  const double rate =
      peak(element_bytes, stack.tf32, cluster) * *d.gemm_efficiency * stack.product_rate * alignment * k / (k + *d.gemm_half_depth) * filled;
  const double bytes = static_cast<double>(element_bytes) * (m * n + m * k + n * k);
  return std::max({2 * m * n * k / rate, bytes / memory_bandwidth(cluster), *d.kernel_seconds});
}

AttentionSeconds attention_seconds(double sequences, double length, double heads, double head_size, int64_t element_bytes, const Stack& stack,
                                   const ClusterConfig& cluster, double window) {
  const DeviceConfig& d = cluster.device;
  const double scores = sequences * heads * length * length;
  if (stack.attention == AttentionKernel::kUnfused) {
    // Two products over all of T x T forward, four backward. Bytes per score between them: forward: written by the product (2), softmax (2 + 2),
    // dropout with its mask (2 + 2 + 1); backward: the same in reverse, plus one more read of mask and probabilities.
    constexpr double kForwardBytes = 11, kBackwardBytes = 15;
    const double products = 4 * scores * head_size / (peak(element_bytes, stack.tf32, cluster) * *d.gemm_efficiency * stack.product_rate);
    return {products + kForwardBytes * scores / memory_bandwidth(cluster), 2 * products + kBackwardBytes * scores / memory_bandwidth(cluster)};
  }
  // The rate of Trireme's kernels for compute capability 9.0 (kernels/cuda/attention_hopper.h), by `bench kernels` on an H100
  // (bench/llama-1.3b_nvidia-h100_2026-11-26.md): forward and backward together reach 1.37 to 1.57 times the device's rate over ten shapes, in the
  // median 1.46. No H200 was measured with them.
  constexpr double kHopperRate = 1.46;
  const bool hopper = stack.own && (d.type == "H100" || d.type == "H200") && element_bytes == 2 && (head_size == 64 || head_size == 128);
  // Head size 64 reaches 0.87 of the rate of 128 (arXiv:2307.08691, figures 5 and 6); 0.7 for smaller heads is assumed.
  const double heads_rate = head_size >= 128 ? 1 : head_size >= 64 ? 0.87 : 0.7;
  const double own = d.cores ? 1 : hopper ? kHopperRate : stack.attention_rate;  // bench machine measured Trireme's attention on CPUs
  const double rate = peak(element_bytes, false, cluster) * *d.attention_efficiency * own * heads_rate * length / (length + *d.attention_half_length);
  const double width = window > 0 ? std::min(window, length) : length, seen = width * (2 - width / length) / length;  // share of the causal half
  const double flops = 2 * seen * scores * head_size;
  if (stack.own && !stack.cudnn && !d.cores && !has_fast_attention(std::llround(head_size), element_bytes)) {
    const auto seconds = [&](double work, double share) { return std::max(work / (share * *d.peak_flops_fp32), *d.kernel_seconds); };
    return {seconds(flops, kPlainAttentionForward), seconds(2.5 * flops, kPlainAttentionBackward)};
  }
  const double forward = std::max(flops / rate, *d.kernel_seconds);
  return {forward, 2.5 * forward};  // five products instead of two
}

double traffic_bytes(double bytes, int64_t element_bytes, bool cores) { return cores && element_bytes == 2 ? 2 * bytes : bytes; }

double traffic_seconds(double bytes, double kernels, const ClusterConfig& cluster) {
  return std::max(bytes / memory_bandwidth(cluster), kernels * *cluster.device.kernel_seconds);
}

double elementwise_seconds(double bytes, double kernels, const ClusterConfig& cluster) {
  const DeviceConfig& d = cluster.device;
  const double bandwidth = speedup(cluster) * d.elementwise_bandwidth.value_or(*d.memory_bandwidth);
  return std::max(bytes / bandwidth, kernels * *d.kernel_seconds);
}

}  // namespace trireme
