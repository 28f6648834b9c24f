#pragma once
// Declares every key of a cluster file once, as visit.h does for a configuration. Units are bytes, bytes/s, FLOP/s, seconds and watts.
#include "trainer/config/cluster.h"
#include "trainer/config/field.h"

namespace trireme {

inline constexpr const char* kBuiltInFigure = "the built-in figure of device.type";
// Limits for plausible figures: a value outside them is usually in a wrong unit.
inline constexpr double kLeastBytes = 1e6, kMostBytes = 1e15;  ///< bytes, and bytes/s
inline constexpr double kLeastFlops = 1e8, kMostFlops = 1e18;

template <class V>
void visit(V& v, DeviceConfig& c) {
  const auto share = [&](const char* key, const char* doc, Auto<double>& value) {
    v(Field{.key = key, .doc = doc, .min = 0, .max = 1, .above_min = true, .auto_rule = kBuiltInFigure}, value);
  };
  v(Field{.key = "type", .doc = "Device type. A100-40GB, A100, H100, H200, B200 and cpu have built-in figures; any other name needs every figure."},
    c.type);
  v(Field{.key = "memory",
          .doc = "Memory that a process can allocate, in bytes.",
          .min = kLeastBytes,
          .max = kMostBytes,
          .auto_rule = kBuiltInFigure},
    c.memory);
  v(Field{.key = "memory_bandwidth",
          .doc = "Bandwidth that copies reach, in bytes/s, counting reads and writes.",
          .min = kLeastBytes,
          .max = kMostBytes,
          .auto_rule = kBuiltInFigure},
    c.memory_bandwidth);
  v(Field{.key = "elementwise_bandwidth",
          .doc = "Bandwidth of norms, activations and the loss, in bytes/s; operands may be in cache. Default: memory_bandwidth.",
          .min = kLeastBytes,
          .max = kMostBytes},
    c.elementwise_bandwidth);
  v(Field{.key = "peak_flops",
          .doc = "Peak FLOP/s of dense bf16 and fp16 matrix products. MFU is relative to this peak.",
          .min = kLeastFlops,
          .max = kMostFlops,
          .auto_rule = kBuiltInFigure},
    c.peak_flops);
  v(Field{.key = "peak_flops_fp32",
          .doc = "Peak FLOP/s of fp32 matrix products.",
          .min = kLeastFlops,
          .max = kMostFlops,
          .auto_rule = kBuiltInFigure},
    c.peak_flops_fp32);
  share("gemm_efficiency", "Share of the peak that a large matrix product reaches during training.", c.gemm_efficiency);
  v(Field{.key = "gemm_half_depth",
          .doc = "Depth k of a matrix product m x n x k that reaches half of gemm_efficiency.",
          .min = 0,
          .max = 1e6,
          .auto_rule = kBuiltInFigure},
    c.gemm_half_depth);
  v(Field{.key = "multiprocessors",
          .doc = "Number of multiprocessors: tiles of a matrix product that run at a time.",
          .min = 1,
          .max = 1e6,
          .auto_rule = kBuiltInFigure},
    c.multiprocessors);
  share("attention_efficiency", "Share of the peak that fused causal attention reaches on long sequences, forward and backward, with head size 128.",
        c.attention_efficiency);
  v(Field{.key = "attention_half_length",
          .doc = "Sequence length, in tokens, that reaches half of attention_efficiency.",
          .min = 0,
          .max = 1e6,
          .auto_rule = kBuiltInFigure},
    c.attention_half_length);
  v(Field{.key = "kernel_seconds", .doc = "Minimum time of one kernel, in seconds.", .min = 0, .max = 1, .auto_rule = kBuiltInFigure},
    c.kernel_seconds);
  v(Field{.key = "watts",
          .doc = "Power of one device in training, in watts, with its share of host, network and cooling. Not given: no energy forecast.",
          .min = 0,
          .max = 1e5,
          .above_min = true},
    c.watts);
  v(Field{.key = "price_per_hour", .doc = "Price of one device per hour, in any currency. Not given: no cost forecast.", .min = 0, .max = 1e6},
    c.price_per_hour);
  v(Field{.key = "cores",
          .doc = "Number of CPU cores of a node that its ranks share; the figures above are then per core. Not given: every rank has its own device.",
          .min = 1,
          .max = 1 << 16},
    c.cores);
  v(Field{.key = "core_scaling",
          .doc = "n threads or ranks of a node that work together and wait for one another have n^core_scaling times the throughput of one. Default: "
                 "0.85 for type cpu, otherwise 1.",
          .min = 0,
          .max = 1},
    c.core_scaling);
}

template <class V>
void visit(V& v, LinkRanges& c) {
  v(Field{.key = "from",
          .doc = "Bytes of the whole buffer at which each range begins, increasing. Not given: the link's own figures hold for every size.",
          .min = 1,
          .max = kMostBytes},
    c.from);
  v(Field{.key = "latency", .doc = "Latency of one hop in each range, in seconds.", .min = 0, .max = 1}, c.latency);
  v(Field{.key = "bandwidth", .doc = "Bytes/s that each rank sends in each range.", .min = 1, .max = kMostBytes}, c.bandwidth);
}

template <class V>
void visit(V& v, LinkConfig& c) {
  v(Field{.key = "bandwidth",
          .doc = "Bytes/s that each device sends in a large collective (bus bandwidth of nccl-tests).",
          .min = kLeastBytes,
          .max = kMostBytes,
          .auto_rule = kBuiltInFigure},
    c.bandwidth);
  v(Field{.key = "latency", .doc = "Latency of one hop, in seconds.", .min = 0, .max = 1, .auto_rule = kBuiltInFigure}, c.latency);
  v(Field{.key = "ramp",
          .doc = "Start-up time that a large collective loses until all its channels are full, in seconds.",
          .min = 0,
          .max = 1,
          .auto_rule = kBuiltInFigure},
    c.ramp);
  v.section("all_reduce", "Measured ranges of an all-reduce; bench comm --cluster writes them.", c.all_reduce);
  v.section("all_gather", "Measured ranges of an all-gather, and of a reduce-scatter without ranges of its own.", c.all_gather);
  v.section("reduce_scatter", "Measured ranges of a reduce-scatter.", c.reduce_scatter);
  v.section("send", "Measured ranges of a message between two ranks.", c.send);
}

template <class V>
void visit(V& v, SoftwareConfig& c) {
  v(Field{.key = "stack",
          .doc = "Software whose kernels, overlap and memory are forecast: trireme, or a published system.",
          .choices = {"trireme", "megatron-2021", "megatron-deepspeed", "zero-bubble", "megatron-2023", "megatron-2024", "llama-3", "deepspeed-zero3",
                      "llm-foundry", "torchtitan", "nanotron", "llm.c", "pytorch-fsdp"}},
    c.stack);
  v(Field{.key = "straggler", .doc = "Factor by which the slowest rank's compute takes longer than usual.", .min = 1, .max = 1000}, c.straggler);
  v(Field{.key = "compiled",
          .doc = "Whether a compiler fuses the loss, which then keeps no fp32 copy of the logits; the step time is forecast without it. For stacks "
                 "other than "
                 "trireme."},
    c.compiled);
  v(Field{.key = "fp8",
          .doc = "Matrix products of the blocks in fp8, by the granularity of their scales. For stacks other than trireme.",
          .choices = {"none", "tensorwise", "rowwise"}},
    c.fp8);
  v(Field{.key = "context",
          .doc = "Number of consecutive data ranks that share each sequence (context parallelism). training.sequence_length is then the part of one "
                 "rank, and training.global_batch_size the number of parts. For stacks other than trireme.",
          .min = 1,
          .max = 1024},
    c.context);
}

template <class V>
void visit(V& v, StorageConfig& c) {
  v(Field{.key = "write", .doc = "Bytes/s at which a node writes a checkpoint.", .min = kLeastBytes, .max = kMostBytes}, c.write);
  v(Field{.key = "read", .doc = "Bytes/s at which a node reads a checkpoint.", .min = kLeastBytes, .max = kMostBytes}, c.read);
}

template <class V>
void visit(V& v, ClusterConfig& c) {
  v(Field{.key = "name", .doc = "Name of the cluster, for information only."}, c.name);
  v(Field{.key = "nodes", .doc = "Number of nodes (machines).", .min = 1, .max = 1 << 20}, c.nodes);
  v(Field{.key = "devices_per_node", .doc = "Number of GPUs of a node, or of ranks that share the CPU of a node.", .min = 1, .max = 1024},
    c.devices_per_node);
  v.section("device", "One GPU, or one rank's share of a CPU machine.", c.device);
  v.section("node_link", "Links between the devices of a node.", c.node_link);
  v(Field{.key = "nvls_bandwidth",
          .doc = "Bytes/s of an all-reduce that the node's switch sums (NVLink SHARP), over five or more devices. 0: not supported.",
          .min = 0,
          .max = kMostBytes,
          .auto_rule = kBuiltInFigure},
    c.nvls_bandwidth);
  v.section("network", "Network between nodes: each device's share.", c.network);
  v(Field{.key = "level_nodes",
          .doc = "Number of nodes under one switch, for each switch level above the first, in increasing order.",
          .min = 1,
          .max = 1 << 20,
          .auto_rule = "one level without oversubscription"},
    c.level_nodes);
  v(Field{.key = "level_oversubscription",
          .doc = "Oversubscription of each level of level_nodes: total bandwidth of the nodes under a switch / bandwidth of its uplinks.",
          .min = 1,
          .max = 1000,
          .auto_rule = "one level without oversubscription"},
    c.level_oversubscription);
  v.section("software", "Software that runs on the cluster.", c.software);
  v.section("storage", "Storage of checkpoints.", c.storage);
  v(Field{.key = "node_mtbf", .doc = "Mean time between failures of one node, in seconds.", .min = 3600, .max = 1e10}, c.node_mtbf);
  v(Field{.key = "restart",
          .doc = "Seconds from the detection of a failure to the next step, not counting the loading of the checkpoint.",
          .min = 0,
          .max = 1e6},
    c.restart);
}

}  // namespace trireme
