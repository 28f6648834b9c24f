#include "trainer/config/device_table.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// Share of the data sheet's memory bandwidth that copies reach: assumed (0.85 to 0.9 is usual), not fitted.
constexpr double kCopies = 0.88;
/// Share of a network adapter's bandwidth that NCCL reaches: 24 of 25 GB/s at 200 Gb/s, 48 of 50 at 400, slightly less over eight adapters.
/// Source: NVIDIA GTC 2024, talk S62129.
constexpr double kAdapter = 0.95;

// Memory is the total of cudaMemGetInfo, which out-of-memory messages print. It is below the 40960 to 183359 MiB of nvidia-smi, which include memory
// reserved by the driver. Peaks are from data sheets: dense bf16 with fp32 sums, and fp32 without tensor cores. gemm_*, attention_*, kernel_seconds,
// latency and ramp are fitted: products and attention to published kernels, all of them to published runs.

/// Sources: data sheet of the A100 (NVIDIA, June 2021); CoSeR issue 10 on GitHub (39.50 GiB); attention: FlashAttention-2, arXiv:2307.08691, figure
/// 5, head size 128 causal; NVLink: NVIDIA GTC 2024, talk S62129 (232 GB/s, 8 GPUs).
ClusterConfig a100_40gb() {
  ClusterConfig c;
  c.device = {.type = "A100-40GB",
              .memory = 39.50 * kGiB,
              .memory_bandwidth = kCopies * 1.555e12,
              .peak_flops = 312e12,
              .peak_flops_fp32 = 19.5e12,
              .gemm_efficiency = 0.85,
              .gemm_half_depth = 0,
              .multiprocessors = 108,
              .attention_efficiency = 0.62,
              .attention_half_length = 490,
              .kernel_seconds = 4e-6,
              .watts = {},
              .price_per_hour = {}};
  c.node_link = {.bandwidth = 232e9, .latency = 3e-6, .ramp = 1.5e-4};
  c.nvls_bandwidth = 0;
  c.network = {.bandwidth = kAdapter * 25e9, .latency = 5e-6, .ramp = 1.5e-4};
  return c;
}

/// A100 with 80 GB.   Source of the memory: OOTDiffusion issue 235 and Vad-R1 issue 11 on GitHub (79.25 GiB).
ClusterConfig a100() {
  ClusterConfig c = a100_40gb();
  c.device.type = "A100";
  c.device.memory = 79.25 * kGiB;
  c.device.memory_bandwidth = kCopies * 2.039e12;
  return c;
}

/// SXM5, 700 W.   Sources: data sheet of the H100; vLLM issue 27508 on GitHub (79.11 GiB); attention: FlashAttention-2, figure 6; NVLink: NVIDIA GTC
/// 2024, talk S62129 (370 GB/s in a ring, 480 summed in the switch).
ClusterConfig h100() {
  ClusterConfig c;
  c.device = {.type = "H100",
              .memory = 79.11 * kGiB,
              .memory_bandwidth = kCopies * 3.35e12,
              .peak_flops = 989e12,
              .peak_flops_fp32 = 67e12,
              .gemm_efficiency = 0.70,
              .gemm_half_depth = 0,
              .multiprocessors = 132,
              .attention_efficiency = 0.345,
              .attention_half_length = 570,
              .kernel_seconds = 3e-6,
              .watts = {},
              .price_per_hour = {}};
  c.node_link = {.bandwidth = 370e9, .latency = 3e-6, .ramp = 1.0e-4};
  c.nvls_bandwidth = 480e9;
  c.network = {.bandwidth = kAdapter * 50e9, .latency = 5e-6, .ramp = 1.0e-4};
  return c;
}

/// An H100 with different memory.   Sources: data sheet of the H200; 143771 MiB of nvidia-smi, less the driver's reserve on an H100.
ClusterConfig h200() {
  ClusterConfig c = h100();
  c.device.type = "H200";
  c.device.memory = 139.8 * kGiB;
  c.device.memory_bandwidth = kCopies * 4.8e12;
  return c;
}

/// Sources: data sheet of HGX B200; PyTorch AO pull request 4002 on GitHub (178.35 GiB, 148 multiprocessors, 7.7 TB/s); products: ml-engineering by
/// S. Bekman, accelerators (1745 of 2250 TFLOP/s at best); links: its chapter on networks (846 GB/s on one node, 382 on four with 50 GB/s for each
/// GPU; a ring is assumed to reach the same share of NVLink 5 as of NVLink 4). Attention: assumed equal to the H100.
ClusterConfig b200() {
  ClusterConfig c = h100();
  c.device.type = "B200";
  c.device.memory = 178.35 * kGiB;
  c.device.memory_bandwidth = kCopies * 7.7e12;
  c.device.peak_flops = 2250e12;
  c.device.peak_flops_fp32 = 80e12;
  c.device.gemm_efficiency = 0.70;
  c.device.multiprocessors = 148;
  c.node_link.bandwidth = 370e9 / 450e9 * 900e9;
  c.nvls_bandwidth = 846e9;
  return c;
}

/// One core of a server with AVX-512. `trireme bench machine` measures the local machine.
ClusterConfig cpu() {
  ClusterConfig c;
  c.devices_per_node = 1;
  c.device = {.type = "cpu",
              .memory = 8 * kGiB,
              .memory_bandwidth = 10e9,
              .peak_flops = 250e9,
              .peak_flops_fp32 = 125e9,
              .gemm_efficiency = 0.8,
              .gemm_half_depth = 32,
              .multiprocessors = 1,
              .attention_efficiency = 0.4,
              .attention_half_length = 64,
              .kernel_seconds = 5e-6,
              .watts = {},
              .price_per_hour = {},
              .cores = 2,
              .core_scaling = 0.85};
  c.node_link = {.bandwidth = 4e9, .latency = 2e-6, .ramp = 0};
  c.nvls_bandwidth = 0;
  c.network = {.bandwidth = kAdapter * 1.25e9, .latency = 3e-5, .ramp = 0};  // 10 Gb/s
  return c;
}

const std::vector<ClusterConfig>& all() {
  static const std::vector<ClusterConfig> types = {a100_40gb(), a100(), h100(), h200(), b200(), cpu()};
  return types;
}

}  // namespace

const ClusterConfig* built_in(const std::string& type) {
  const auto found = std::find_if(all().begin(), all().end(), [&](const ClusterConfig& c) { return c.device.type == type; });
  return found == all().end() ? nullptr : &*found;
}

std::vector<std::string> device_types() {
  std::vector<std::string> names;
  for (const ClusterConfig& c : all()) names.push_back(c.device.type);
  return names;
}

}  // namespace trireme
