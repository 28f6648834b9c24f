#pragma once
// Description of the machines for a forecast: devices, links, and the software whose kernels and overlap are assumed. Cluster files are read as
// strictly as configurations.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A built-in type, or a custom type whose figures are all given. `auto`: the built-in figure (filled in by resolve_cluster).
struct DeviceConfig {
  std::string type = "H100";                ///< one of device_types(), or any other name with every figure given
  Auto<double> memory;                      ///< bytes
  Auto<double> memory_bandwidth;            ///< bytes/s that copies reach, reads plus writes
  Auto<double> elementwise_bandwidth = {};  ///< bytes/s of norms, activations and the loss, partly from cache; not given: memory_bandwidth
  Auto<double> peak_flops;                  ///< peak FLOP/s of dense bf16 and fp16 products with fp32 sums; MFU is relative to it
  Auto<double> peak_flops_fp32;             ///< peak FLOP/s of fp32 products
  Auto<double> gemm_efficiency;             ///< share of the peak that a large product reaches in training
  Auto<double> gemm_half_depth;             ///< k of a product m x n x k that reaches half of gemm_efficiency
  Auto<double> multiprocessors;             ///< tiles of a product that run at a time; the last round of them is half full on average
  Auto<double> attention_efficiency;        ///< share of the peak, fused causal attention, forward and backward, long sequences, head size 128
  Auto<double> attention_half_length;       ///< sequence length that reaches half of attention_efficiency
  Auto<double> kernel_seconds;              ///< minimum seconds of one kernel
  Auto<double> watts;                       ///< of one device in training, with its share of host, network and cooling
  Auto<double> price_per_hour;              ///< of one device, in any currency
  /// CPU cores of a node, shared by its ranks; the figures above are per core. Not given: each rank has its own device.
  Auto<double> cores = {};
  Auto<double> core_scaling = {};  ///< n threads or ranks of a node have n^core_scaling times the throughput of one; checked on two cores
  bool operator==(const DeviceConfig&) const = default;
};

/// Measured cost of one operation by ranges of its size S, as `bench comm` fits it: three lists of equal length, or none. S belongs to the last range
/// that begins at or below it, or to the first one. Over n ranks the operation takes p ((n-1) latency + (n-1)/n S / bandwidth), with p = 2 for an
/// all-reduce and 1 for the others; a send takes latency + S / bandwidth.
struct LinkRanges {
  Auto<std::vector<int64_t>> from;      ///< bytes at which each range begins, increasing; the first is the smallest size that was measured
  Auto<std::vector<double>> latency;    ///< seconds
  Auto<std::vector<double>> bandwidth;  ///< bytes/s
  bool operator==(const LinkRanges&) const = default;
};

/// A collective of S bytes over n ranks takes latency x steps + ramp x S / (S + 16 MiB) + wire bytes / bandwidth.
struct LinkConfig {
  Auto<double> bandwidth;  ///< bytes/s that each device sends in a large collective (bus bandwidth)
  Auto<double> latency;    ///< seconds of one hop
  Auto<double> ramp;       ///< seconds that a large collective loses until all its channels are full
  /// Take the place of the figures above for their operation; reduce_scatter without ranges takes those of all_gather.
  LinkRanges all_reduce = {}, all_gather = {}, reduce_scatter = {}, send = {};
  bool operator==(const LinkConfig&) const = default;
};

struct SoftwareConfig {
  std::string stack = "trireme";  ///< one of stacks() (trainer/plan/stack.h), whose kernels, overlap and memory are forecast
  double straggler = 1.0;         ///< compute time of the slowest rank / usual compute time
  /// How a run of another system was set up, where Trireme has no such key.
  bool compiled = false;     ///< a compiler fuses the loss, which then keeps less memory
  std::string fp8 = "none";  ///< none, tensorwise or rowwise: matrix products of the blocks in fp8, by the granularity of the scales
  int64_t context = 1;       ///< data ranks that share each sequence; training.sequence_length is one rank's part of it
  bool operator==(const SoftwareConfig&) const = default;
};

/// Checkpoint bandwidth per node, for any number of nodes.   Source: SC'21, arXiv:2104.04473, 5.10: 384 nodes write 273 GB/s and read 1 TB/s.
struct StorageConfig {
  double write = 0.71e9;  ///< bytes/s
  double read = 2.6e9;    ///< bytes/s
  bool operator==(const StorageConfig&) const = default;
};

struct ClusterConfig {
  std::string name = "cluster";
  DeviceConfig device;
  int64_t nodes = 1;
  int64_t devices_per_node = 8;
  LinkConfig node_link;                              ///< between devices of a node
  Auto<double> nvls_bandwidth;                       ///< bytes/s of an all-reduce summed in the switch, over five or more devices of a node; 0 = none
  LinkConfig network;                                ///< between nodes; bandwidth is each device's share
  Auto<std::vector<int64_t>> level_nodes;            ///< nodes under one switch, per level above the first, increasing; auto: one level
  Auto<std::vector<double>> level_oversubscription;  ///< per entry of level_nodes: bandwidth of the nodes / uplink bandwidth
  SoftwareConfig software;
  StorageConfig storage;
  double node_mtbf = 264 * 86400.0;  ///< seconds between failures of a node; 419 in 54 days on 2048 nodes: Llama 3, arXiv:2407.21783, 3.3.4
  double restart = 120;              ///< seconds from the detection of a failure to the next step, without loading; an assumption
  bool operator==(const ClusterConfig&) const = default;

  int64_t devices() const { return nodes * devices_per_node; }
  /// Devices per rank: 1 for GPUs; cores per rank for CPUs, below 1 if ranks share cores.
  double cores_per_rank() const { return device.cores ? *device.cores / static_cast<double>(devices_per_node) : 1; }
};

inline constexpr int64_t kMostDevices = 1 << 22;  ///< limit per cluster: time and memory of a forecast grow with the devices

/// Reads a cluster file with the keys of the structs above, or takes a built-in type (one node of eight devices). `sets`: overrides "key.path=value".
/// Errors: those of load_config.
ClusterConfig load_cluster(const std::string& path, const std::vector<std::string>& sets = {});
ClusterConfig parse_cluster(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});

/// Fills in every `auto` from the device's type. Errors: ConfigError that lists every missing figure of a custom type.
ClusterConfig resolve_cluster(const ClusterConfig& cluster);

/// For machines whose ranks share cores: `cluster` with `world` ranks spread over its nodes, each with its share of the memory. Returns `cluster`
/// unchanged for other machines and if `world` is not a multiple of the nodes. `cluster` must be resolved.
ClusterConfig with_ranks_sharing_cores(const ClusterConfig& cluster, int64_t world);

bool is_built_in(const std::string& name);  ///< true for a built-in type, unless a file of that name exists
std::vector<std::string> device_types();    ///< built-in types: A100-40GB, A100, H100, H200, B200, cpu

}  // namespace trireme
