#include "trainer/bench/kernels.h"

#include <algorithm>

#include "kernels/ops/attention.h"
#include "trainer/bench/bandwidth.h"
#include "trainer/bench/products.h"
#include "trainer/files/table.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/trainer.h"
#include "trainer/model/dims.h"

namespace trireme::bench {
namespace {

using nlohmann::ordered_json;

ordered_json bench_products(const Context& ctx, const Config& config, const KernelOptions& options) {
  std::vector<Product> products{{"square", options.square, options.square, options.square}};
  for (const Product& product : products_of(config.model, options.tokens, 1)) products.push_back(product);
  ordered_json rows = ordered_json::array();
  for (const Product& product : products) {
    const ProductTiming timing = time_product(ctx, precision_of(config.training).compute, product, options.effort);
    const auto tflops = [&](const Timing& one) { return product.flops() / one.median / 1e12; };
    rows.push_back({{"product", product.name},
                    {"rows", product.rows},
                    {"inputs", product.inputs},
                    {"outputs", product.outputs},
                    {"forward_tflops", tflops(timing.forward)},
                    {"backward_input_tflops", tflops(timing.backward_input)},
                    {"backward_weight_tflops", tflops(timing.backward_weight)}});
  }
  return rows;
}

/// Rate of the fastest product: an upper bound for a model's products.
double highest(const ordered_json& rows) {
  double most = 0;
  for (const auto& row : rows)
    for (const char* key : {"forward_tflops", "backward_input_tflops", "backward_weight_tflops"}) most = std::max(most, row[key].get<double>());
  return most;
}

ordered_json bench_attention_shape(const Context& like, DType dtype, const AttentionShape& shape, const Effort& effort) {
  Workbench bench(like);
  Context& ctx = bench.ctx();
  const int64_t rows = shape.batch * shape.sequence, width = shape.heads * shape.head_size;
  const Tensor qkv = random_tensor(ctx, {rows, shape.columns()}, dtype, 1), out = random_tensor(ctx, {rows, width}, dtype, 2);
  const Tensor lse = random_tensor(ctx, {shape.batch, shape.heads, shape.sequence}, accumulator_of(dtype), 3);
  const Tensor dout = random_tensor(ctx, {rows, width}, dtype, 4), dqkv = random_tensor(ctx, {rows, shape.columns()}, dtype, 5);
  const auto forward = [&](int64_t) { attention_forward(ctx, qkv, shape, out, lse); };
  const auto backward = [&](int64_t) { attention_backward(ctx, dout, qkv, out, lse, shape, dqkv); };
  const Timing timing_forward = measure(ctx, effort, forward);
  const Timing timing_backward = measure(ctx, effort, backward);
  const Timing timing_both = measure(ctx, effort, [&](int64_t call) {
    forward(call);
    backward(call);
  });
  const AttentionWork work{shape.batch, shape.sequence, shape.heads, shape.head_size, shape.window};
  const double flops = OperationRecord{.kind = OperationKind::kAttention, .attention = work}.flops();
  return {{"head_size", shape.head_size},
          {"sequence", shape.sequence},
          {"batch", shape.batch},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"forward_tflops", flops / timing_forward.median / 1e12},
          {"backward_tflops", 2.5 * flops / timing_backward.median / 1e12},
          {"forward_backward_tflops", 3.5 * flops / timing_both.median / 1e12}};
}

ordered_json bench_attention(const Context& ctx, const Config& config, const KernelOptions& options) {
  const Dims d(config.model, 1);
  ordered_json rows = ordered_json::array();
  for (const int64_t head_size : options.head_sizes) {
    const int64_t heads = std::max<int64_t>(d.N * d.H / head_size, 1);
    const int64_t kv_heads = heads % (d.N / d.K) == 0 ? heads / (d.N / d.K) : heads;  // same ratio of query to kv heads as in the model
    for (const int64_t sequence : options.sequences) {
      const AttentionShape shape{
          std::max<int64_t>(options.tokens / sequence, 1), sequence, heads, kv_heads, head_size, config.model.window.value_or(0)};
      rows.push_back(bench_attention_shape(ctx, precision_of(config.training).compute, shape, options.effort));
    }
  }
  return rows;
}

}  // namespace

ordered_json bench_kernels(const Context& ctx, const Config& config, const KernelOptions& options) {
  ordered_json result;
  if (options.gemm) {
    result["gemm"] = bench_products(ctx, config, options);
    result["gemm_ceiling_tflops"] = highest(result["gemm"]);
  }
  if (options.attention) {
    result["attention"] = bench_attention(ctx, config, options);
    if (config.kernels.attention == AttentionEngine::kCudnn && ctx.device == Device::kCuda)
      result["cudnn_attention"] = to_json(attention_kernels(*ctx.gpu));
  }
  if (options.bandwidth) {
    const BandwidthOptions bandwidth{options.tokens, options.working_set, options.effort};
    const double copy = copy_bandwidth(ctx, bandwidth);
    result["copy_gb_per_second"] = copy / 1e9;
    result["bandwidth"] = bench_bandwidth(ctx, precision_of(config.training).compute, config.model, copy, bandwidth);
  }
  return result;
}

std::string kernels_text(const ordered_json& result) {
  std::string text;
  if (result.contains("gemm"))
    text += concat("\nmatrix products, TFLOP/s; ceiling ", result["gemm_ceiling_tflops"].get<double>(), "\n", table_of(result["gemm"]));
  if (result.contains("attention")) text += concat("\ncausal attention, TFLOP/s of the causal half\n", table_of(result["attention"]));
  if (result.contains("cudnn_attention")) text += attention_text(result["cudnn_attention"]);
  if (result.contains("bandwidth"))
    text += concat("\nmemory-bound kernels; a copy reaches ", result["copy_gb_per_second"].get<double>(), " GB/s, read plus written\n",
                   table_of(result["bandwidth"]));
  return text;
}

}  // namespace trireme::bench
