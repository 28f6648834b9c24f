#pragma once
// What a forecast knows of machines: devices, links, and the software whose kernels and overlap it reckons with. Read from a cluster file as strictly
// as a configuration is.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A built-in type, or another one whose figures the file gives. `auto`: the built-in's (resolve_cluster fills them in).
struct DeviceConfig {
  std::string type = "H100";                ///< of device_types(), or any other name with every figure given
  Auto<double> memory;                      ///< bytes
  Auto<double> memory_bandwidth;            ///< bytes/s that copies reach
  Auto<double> elementwise_bandwidth = {};  ///< bytes/s of norms, activations and the loss, whose operands caches may hold; not given: memory's
  Auto<double> peak_flops;                  ///< FLOP/s of dense bf16 and fp16 products with fp32 sums; what MFU is a share of
  Auto<double> peak_flops_fp32;             ///< FLOP/s of fp32 products
  Auto<double> gemm_efficiency;             ///< share of the peak that a large product reaches while training
  Auto<double> gemm_half_depth;             ///< k of a product m x n x k that reaches half of that
  Auto<double> multiprocessors;             ///< tiles of a product that run at a time; the last round of them is half full on average
  Auto<double> attention_efficiency;        ///< share of the peak of fused causal attention, forward and backward, over long sequences, head size 128
  Auto<double> attention_half_length;       ///< sequence length that reaches half of that
  Auto<double> kernel_seconds;              ///< least time between two kernels
  Auto<double> watts;                       ///< of a device in training, with its share of host, network and cooling
  Auto<double> price_per_hour;              ///< of a device, in any currency
  /// CPU: of a node, shared by its ranks; the figures above are one core's. Not given: each rank has a device of its own.
  Auto<double> cores = {};
  Auto<double> core_scaling = {};  ///< n threads or ranks of a node at one job do n^core_scaling times what one does by itself; checked on two cores
  bool operator==(const DeviceConfig&) const = default;
};

/// A collective of S bytes over n ranks takes latency x steps + ramp x S / (S + 16 MiB) + wire bytes / bandwidth.
struct LinkConfig {
  Auto<double> bandwidth;  ///< bytes/s that each device sends, as a large collective reaches it (bus bandwidth)
  Auto<double> latency;    ///< seconds of one hop
  Auto<double> ramp;       ///< seconds that a large collective loses until all its channels are full
  bool operator==(const LinkConfig&) const = default;
};

struct SoftwareConfig {
  std::string stack = "trireme";  ///< of stacks() (trainer/plan/stack.h): whose kernels, overlap and memory are forecast
  double straggler = 1.0;         ///< the slowest rank's compute takes so many times the usual
  bool operator==(const SoftwareConfig&) const = default;
};

/// Of checkpoints, by each node that takes part, however many they are.   Source: SC'21, arXiv:2104.04473, 5.10: 273 GB/s from and 1 TB/s to 384.
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
  LinkConfig node_link;                    ///< between devices of a node
  Auto<double> nvls_bandwidth;             ///< bytes/s of an all-reduce that the switch adds up, over five and more devices of a node; 0 = none
  LinkConfig network;                      ///< between nodes; bandwidth of each device's share
  Auto<std::vector<int64_t>> level_nodes;  ///< nodes under one switch, of each level above the first, rising; auto: one level
  Auto<std::vector<double>> level_oversubscription;  ///< of each of these, how many times less bandwidth leaves it than its nodes have
  SoftwareConfig software;
  StorageConfig storage;
  double node_mtbf = 264 * 86400.0;  ///< seconds between failures of a node; 419 in 54 days on 2048 nodes: Llama 3, arXiv:2407.21783, 3.3.4
  double restart = 120;              ///< seconds from a failure that is known to the first step, loading aside; an assumption
  bool operator==(const ClusterConfig&) const = default;

  int64_t devices() const { return nodes * devices_per_node; }
  /// What a rank has of what device's figures are of: 1, a device of its own; of a CPU several cores, or below 1 where ranks take turns on them.
  double cores_per_rank() const { return device.cores ? *device.cores / static_cast<double>(devices_per_node) : 1; }
};

inline constexpr int64_t kMostDevices = 1 << 22;  ///< of a cluster: a forecast's time and memory grow with them

/// Reads a cluster file; keys as in the structs above. `sets`: "key.path=value", laid over it. In place of a file a built-in type: one node of eight.
/// Errors: those of load_config.
ClusterConfig load_cluster(const std::string& path, const std::vector<std::string>& sets = {});
ClusterConfig parse_cluster(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});

/// Fills in every `auto` from the device's type. Errors: ConfigError with every figure that a type of its own lacks.
ClusterConfig resolve_cluster(const ClusterConfig& cluster);

/// Of machines whose ranks share cores: `cluster` with as many ranks on its nodes as `world` has, each with its share of the memory. Of others, and
/// where nodes cannot have equally many, `cluster` itself. `cluster` is resolved.
ClusterConfig shared_by(const ClusterConfig& cluster, int64_t world);

bool is_built_in(const std::string& name);  ///< a type of these and not the name of a file
std::vector<std::string> device_types();    ///< built in: A100-40GB, A100, H100, H200, B200, cpu

}  // namespace trireme
