#pragma once
// Time of single operations on a device, in seconds. `cluster` is resolved. `element_bytes` is 2 (bf16, fp16), 4 or 8.
#include "trainer/config/cluster.h"
#include "trainer/plan/stack.h"

namespace trireme {

/// Peak FLOP/s of matrix products: the device's bf16 or fp32 peak; half the fp32 peak for fp64; half the bf16 peak for TF32, as on A100 to B200.
double peak_flops(int64_t element_bytes, bool tf32, const DeviceConfig& device);

/// Matrix product of [m,k] and [k,n]: 2 m n k / rate, at least the time of its memory traffic. On a GPU
/// rate = peak x gemm_efficiency x k / (k + gemm_half_depth) x r / (r + 1/2), where r = (128 x 128 tiles) / multiprocessors is the number of waves.
/// The last wave is half full on average. CPU cores divide the work more finely, so their rate lacks the factor r / (r + 1/2). `alignment`: factor of
/// the rate by the alignment of rows (alignment_rate).
double product_seconds(double m, double n, double k, int64_t element_bytes, const Stack& stack, const ClusterConfig& cluster, double alignment = 1);

/// Bytes of memory traffic per element of a weight gradient that is added to an fp32 accumulator: one read and one write.
inline constexpr double kAccumulateBytes = 8;

/// Time of causal attention: queries, keys and values in, context out.
struct AttentionSeconds {
  double forward = 0, backward = 0;
};
/// `window`: most keys that a query attends to; 0: all earlier positions. Unfused attention computes the masked scores too.
/// On GPUs, Trireme's own attention without kernels for tensor cores has the rates of shape_rates.h.
AttentionSeconds attention_seconds(double sequences, double length, double heads, double head_size, int64_t element_bytes, const Stack& stack,
                                   const ClusterConfig& cluster, double window = 0);

/// Effective memory traffic, in bytes, of elementwise work on `bytes` bytes. On CPU cores 16-bit elements count as fp32, because converting them to
/// fp32 and back takes that long.
double traffic_bytes(double bytes, int64_t element_bytes, bool cores);
/// Time of `kernels` kernels that together move `bytes` through memory.
double traffic_seconds(double bytes, double kernels, const ClusterConfig& cluster);
/// The same for norms, activations, rotary embedding and the loss, whose operands may be in caches.
double elementwise_seconds(double bytes, double kernels, const ClusterConfig& cluster);

}  // namespace trireme
