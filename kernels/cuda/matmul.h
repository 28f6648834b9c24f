#pragma once
// GPU implementation of kernels/ops/matmul.h with cuBLASLt: fp32 accumulation, bias and (in bf16) GELU as epilogues, dw accumulated into fp32 with
// beta = 1. fp32 products have full fp32 precision unless GpuOptions::tf32 is set. The heuristic's first algorithm, or that of
// use_algorithms(), is cached by shape and alignment; where it has none (16-bit rows with an odd number of elements), the kernel of matmul_plain.h
// computes the product. Products that run beside communication leave GpuOptions::communication_multiprocessors free.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
void linear_gelu_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& hidden, const Tensor& y);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add);

/// These use Trireme's own kernels.
void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

/// Loads cuBLASLt, so that a missing library fails at the start of a run. Returns "cuBLASLt 13.1.0, CUDA runtime 13.0, driver 13.0", for the log.
/// Errors: ConfigError if the library is missing.
std::string library_versions(Gpu& gpu);

/// Matrix products of this GPU since its creation, by implementation. `plain` counts products whose sizes should be padded for speed.
struct ProductCounts {
  int64_t library = 0;
  int64_t plain = 0;
  int64_t plans = 0;  ///< calls of the heuristic
};
ProductCounts product_counts(Gpu& gpu);
/// The shapes for which cuBLASLt has refused every kernel, each once, in the order of first use: "rows 4096, columns 50257, depth 768, BF16 to BF16".
/// One product can fall back in several alignments and appears once.
std::vector<std::string> plain_shapes(Gpu& gpu);

/// Algorithm of cuBLASLt by kind of product (shape, dtypes, transposes, epilogue, alignments). Both texts mean the same in every process with the same
/// GPU model, driver and cuBLASLt. Algorithms differ in speed and in the order of summation.
using ProductAlgorithms = std::map<std::string, std::string>;

/// The algorithms that can compute one kind of product.
struct ProductTimes {
  std::string kind;
  std::vector<std::string> algorithms;  ///< in the heuristic's order; a known one alone
  std::vector<double> seconds;          ///< shortest of three runs of each algorithm; 0 for a known one
};
/// Runs `body` and returns an entry for each kind of product that it computes with cuBLASLt, in the order of first use. A kind is timed at its first
/// use, by events on the compute stream and with the operands of that product, unless the heuristic still offers the algorithm that `known` has for it.
/// The candidates are the first eight of the heuristic, within the workspace of every product; one that cuBLASLt refuses is left out. The host waits
/// for the device, and a product that is added to its output is added once for each run: the caller must drop the gradients of `body`.
/// Errors: InternalError from cuBLASLt, or if a CUDA graph exists.
std::vector<ProductTimes> time_products(Gpu& gpu, const ProductAlgorithms& known, const std::function<void()>& body);
/// Sets the algorithms of all products from now on. A kind that is not listed, or whose algorithm the heuristic does not offer, gets the heuristic's
/// first. A captured CUDA graph keeps its algorithms.
void use_algorithms(Gpu& gpu, const ProductAlgorithms& algorithms);

}  // namespace trireme::cuda
