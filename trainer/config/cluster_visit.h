#pragma once
// Every key of a cluster file, declared once, as visit.h does for a configuration. Plain numbers in bytes, bytes/s, FLOP/s, seconds, watts.
#include "trainer/config/cluster.h"
#include "trainer/config/field.h"

namespace trireme {

inline constexpr const char* kOfType = "the figure of device.type";
// A figure outside of these was written in another unit than the base unit.
inline constexpr double kLeastBytes = 1e6, kMostBytes = 1e15;  ///< also of bytes a second
inline constexpr double kLeastFlops = 1e8, kMostFlops = 1e18;

template <class V>
void visit(V& v, DeviceConfig& c) {
  const auto share = [&](const char* key, const char* doc, Auto<double>& value) {
    v(Field{.key = key, .doc = doc, .min = 0, .max = 1, .above_min = true, .auto_rule = kOfType}, value);
  };
  v(Field{.key = "type", .doc = "A100-40GB, A100, H100, H200, B200 or cpu, whose figures are built in, or another name with every figure given."},
    c.type);
  v(Field{.key = "memory", .doc = "Bytes that a process can allocate.", .min = kLeastBytes, .max = kMostBytes, .auto_rule = kOfType}, c.memory);
  v(Field{.key = "memory_bandwidth",
          .doc = "Bytes/s that copies reach, read and written.",
          .min = kLeastBytes,
          .max = kMostBytes,
          .auto_rule = kOfType},
    c.memory_bandwidth);
  v(Field{.key = "elementwise_bandwidth",
          .doc = "Bytes/s of norms, activations and the loss, whose operands caches may hold; not given: memory_bandwidth.",
          .min = kLeastBytes,
          .max = kMostBytes},
    c.elementwise_bandwidth);
  v(Field{.key = "peak_flops",
          .doc = "FLOP/s of dense bf16 and fp16 products; MFU is a share of it.",
          .min = kLeastFlops,
          .max = kMostFlops,
          .auto_rule = kOfType},
    c.peak_flops);
  v(Field{.key = "peak_flops_fp32", .doc = "FLOP/s of fp32 products.", .min = kLeastFlops, .max = kMostFlops, .auto_rule = kOfType},
    c.peak_flops_fp32);
  share("gemm_efficiency", "Share of the peak that a large product reaches while training.", c.gemm_efficiency);
  v(Field{.key = "gemm_half_depth", .doc = "Depth k of a product m x n x k that reaches half of that.", .min = 0, .max = 1e6, .auto_rule = kOfType},
    c.gemm_half_depth);
  v(Field{.key = "multiprocessors", .doc = "Tiles of a product that run at a time.", .min = 1, .max = 1e6, .auto_rule = kOfType}, c.multiprocessors);
  share("attention_efficiency", "Share of the peak of fused causal attention over long sequences, forward and backward, heads of 128.",
        c.attention_efficiency);
  v(Field{.key = "attention_half_length", .doc = "Sequence length that reaches half of that.", .min = 0, .max = 1e6, .auto_rule = kOfType},
    c.attention_half_length);
  v(Field{.key = "kernel_seconds", .doc = "Least time between two kernels.", .min = 0, .max = 1, .auto_rule = kOfType}, c.kernel_seconds);
  v(Field{.key = "watts",
          .doc = "Of a device in training, with its share of host, network and cooling; not given: no energy.",
          .min = 0,
          .max = 1e5,
          .above_min = true},
    c.watts);
  v(Field{.key = "price_per_hour", .doc = "Of a device, in any currency; not given: no cost.", .min = 0, .max = 1e6}, c.price_per_hour);
  v(Field{.key = "cores",
          .doc = "Cores of a node that its ranks share, the figures above being one core's; not given: every rank has a device of its own.",
          .min = 1,
          .max = 1 << 16},
    c.cores);
  v(Field{.key = "core_scaling",
          .doc = "n threads or ranks of a node at one job, waiting for one another, do n^core_scaling times what one does; not given: 1, of type cpu "
                 "0.85.",
          .min = 0,
          .max = 1},
    c.core_scaling);
}

template <class V>
void visit(V& v, LinkConfig& c) {
  v(Field{.key = "bandwidth",
          .doc = "Bytes/s that each device sends, as a large collective reaches it (bus bandwidth of nccl-tests).",
          .min = kLeastBytes,
          .max = kMostBytes,
          .auto_rule = kOfType},
    c.bandwidth);
  v(Field{.key = "latency", .doc = "Seconds of one hop.", .min = 0, .max = 1, .auto_rule = kOfType}, c.latency);
  v(Field{.key = "ramp", .doc = "Seconds that a large collective loses until all its channels are full.", .min = 0, .max = 1, .auto_rule = kOfType},
    c.ramp);
}

template <class V>
void visit(V& v, SoftwareConfig& c) {
  v(Field{.key = "stack",
          .doc = "Whose kernels, overlap and memory are forecast: trireme, or a published system's.",
          .choices = {"trireme", "megatron-2021", "megatron-deepspeed", "zero-bubble", "megatron-2023", "megatron-2024", "llama-3", "deepspeed-zero3",
                      "llm-foundry", "torchtitan", "nanotron", "llm.c", "pytorch-fsdp"}},
    c.stack);
  v(Field{.key = "straggler", .doc = "The slowest rank's compute takes so many times the usual.", .min = 1, .max = 1000}, c.straggler);
}

template <class V>
void visit(V& v, StorageConfig& c) {
  v(Field{.key = "write", .doc = "Bytes/s that a node writes of a checkpoint.", .min = kLeastBytes, .max = kMostBytes}, c.write);
  v(Field{.key = "read", .doc = "Bytes/s that a node reads of it.", .min = kLeastBytes, .max = kMostBytes}, c.read);
}

template <class V>
void visit(V& v, ClusterConfig& c) {
  v(Field{.key = "name", .doc = "For people."}, c.name);
  v(Field{.key = "nodes", .doc = "Machines.", .min = 1, .max = 1 << 20}, c.nodes);
  v(Field{.key = "devices_per_node", .doc = "GPUs of a machine, or ranks that share the CPU of one.", .min = 1, .max = 1024}, c.devices_per_node);
  v.section("device", "One GPU, or one rank's part of a CPU machine.", c.device);
  v.section("node_link", "Between the devices of a node.", c.node_link);
  v(Field{.key = "nvls_bandwidth",
          .doc = "Bytes/s of an all-reduce that the node's switch adds up, over five and more devices; 0 = none.",
          .min = 0,
          .max = kMostBytes,
          .auto_rule = kOfType},
    c.nvls_bandwidth);
  v.section("network", "Between nodes: each device's share.", c.network);
  v(Field{.key = "level_nodes",
          .doc = "Nodes under one switch, for each level above the first, rising.",
          .min = 1,
          .max = 1 << 20,
          .auto_rule = "one level, nothing oversubscribed"},
    c.level_nodes);
  v(Field{.key = "level_oversubscription",
          .doc = "For each of level_nodes, how many times less bandwidth leaves its switch than its nodes have.",
          .min = 1,
          .max = 1000,
          .auto_rule = "one level, nothing oversubscribed"},
    c.level_oversubscription);
  v.section("software", "What runs on it.", c.software);
  v.section("storage", "Where checkpoints go.", c.storage);
  v(Field{.key = "node_mtbf", .doc = "Seconds between failures of a node, on average.", .min = 3600, .max = 1e10}, c.node_mtbf);
  v(Field{.key = "restart", .doc = "Seconds from a failure that is known to the first step, loading aside.", .min = 0, .max = 1e6}, c.restart);
}

}  // namespace trireme
