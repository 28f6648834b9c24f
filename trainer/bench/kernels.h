#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

struct KernelOptions {
  bool gemm = true, attention = true, bandwidth = true;
  int64_t tokens = 0;               ///< M of every operation except the square product
  int64_t square = 0;               ///< n of the n x n x n product
  std::vector<int64_t> sequences;   ///< sequence lengths of attention; batch: tokens / length, at least one
  std::vector<int64_t> head_sizes;  ///< of attention; number of heads: the model's width / head size
  int64_t working_set = 0;          ///< bytes, see BandwidthOptions
  Effort effort;
};

/// Measures each kernel of `config` (resolved) in isolation on the device of `ctx`, in the configured precision:
/// {"gemm": [{"product", "rows", "inputs", "outputs", "forward_tflops", "backward_input_tflops", "backward_weight_tflops"}], "gemm_ceiling_tflops",
///  "attention": [{"head_size", "sequence", "batch", "heads", "kv_heads", "forward_tflops", "backward_tflops", "forward_backward_tflops"}],
///  "copy_gb_per_second", "bandwidth": [...] as in bench_bandwidth}. Groups that were not requested are absent.
/// Attention counts the causal half: 4*B*N*T*T*H/2 FLOPs forward, 2.5 times that backward.
nlohmann::ordered_json bench_kernels(const Context& ctx, const Config& config, const KernelOptions& options);

/// The result as text tables.
std::string kernels_text(const nlohmann::ordered_json& result);

}  // namespace trireme::bench
