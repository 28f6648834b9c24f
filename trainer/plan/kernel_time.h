#pragma once
// Seconds of single operations on a device. `cluster` is resolved. Elements have 2 bytes (bf16, fp16), 4 or 8.
#include "trainer/config/cluster.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// FLOP/s of products of such elements: that of bf16, of fp32, or half of fp32's; of TF32 half of bf16's, as on A100 to B200.
double peak_flops(int64_t element_bytes, bool tf32, const DeviceConfig& device);

/// A product m x k times k x n: 2 m n k / rate, not less than its memory traffic. The rate is peak x gemm_efficiency x k / (k + gemm_half_depth) x r
/// / (r + 1/2), where r = tiles of 128 x 128 / multiprocessors are the rounds: the last is half full on average. Cores share tiles out more finely.
double product_seconds(double m, double n, double k, int64_t element_bytes, const Stack& stack, const ClusterConfig& cluster);

/// Bytes through memory of a weight gradient's element that is added to an fp32 sum: read and written.
inline constexpr double kAccumulateBytes = 8;

/// Causal attention, from queries, keys and values to the context.
struct AttentionSeconds {
  double forward = 0, backward = 0;
};
/// `window`: keys that a query sees at most, 0: all before it; unfused attention computes the others too.
AttentionSeconds attention_seconds(double sequences, double length, double heads, double head_size, int64_t element_bytes, const Stack& stack,
                                   const ClusterConfig& cluster, double window = 0);

/// What work on `bytes` of such elements, no product, is like in bytes of memory traffic: cores convert 16 bits to fp32 and back, which takes as long as if
/// each were 32.
double traffic_bytes(double bytes, int64_t element_bytes, bool cores);
/// `kernels` kernels that only move `bytes` through memory.
double traffic_seconds(double bytes, double kernels, const ClusterConfig& cluster);
/// Norms, activations, rotary embedding, the loss: the same through what caches hold.
double elementwise_seconds(double bytes, double kernels, const ClusterConfig& cluster);

}  // namespace trireme
