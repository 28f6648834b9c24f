#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/gpu_state.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/matmul_plain.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kFull = 16;  // bytes: no kernel requires more, and the choice must not depend on a buffer's position in the arena

/// The largest power of two, up to kFull, that divides the address.
int64_t alignment_of(const void* pointer) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  return address % kFull == 0 ? kFull : address & -address;
}

/// A product in the column-major convention of cuBLAS: d [m,n] = op(a) op(b), op(a) [m,k]. A row-major tensor [r,c] is a column-major matrix [c,r].
struct Product {
  /// Everything that the choice of an algorithm depends on.
  struct Kind {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    DType in, out;
    cublasLtEpilogue_t epilogue;
    int64_t alignment_a, alignment_b, alignment_d;
    int32_t multiprocessors = 0;  ///< to compute on; 0: all
    auto operator<=>(const Kind&) const = default;
  };
  Kind kind;
  const void* a;
  const void* b;
  void* d;
  bool accumulate;             ///< d += instead of =: with the same algorithm, so that the first of several sums has the bits of an addition to zeros
  const void* bias = nullptr;  ///< [m]; kFull-aligned if an epilogue adds it
  void* hidden = nullptr;      ///< d before the GELU
};

/// Without what differs between calls with equal operands.
std::string shape_of(const Product::Kind& kind) {
  return concat("rows ", kind.n, ", columns ", kind.m, ", depth ", kind.k, ", ", name_of(kind.in), " to ", name_of(kind.out));
}

/// Includes every member of the kind.
std::string text_of(const Product::Kind& kind) {
  return concat("rows ", kind.n, ", columns ", kind.m, ", depth ", kind.k, " (", name_of(kind.in), " to ", name_of(kind.out),
                kind.transpose_a ? ", a transposed" : "", kind.transpose_b ? ", b transposed" : "", ", epilogue ", static_cast<int>(kind.epilogue),
                ", alignments ", kind.alignment_a, " ", kind.alignment_b, " ", kind.alignment_d,
                kind.multiprocessors > 0 ? concat(", on ", kind.multiprocessors, " multiprocessors") : "", ")");
}

std::string describe(const Product& product) { return "product with " + text_of(product.kind); }

void check(const CublasLt& lt, cublasStatus_t status, const char* call, const Product& product) {
  if (status != CUBLAS_STATUS_SUCCESS) throw InternalError(concat(call, ": ", lt.status_string(status), ": ", describe(product)));
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    default: throw InternalError(concat("products of dtype ", name_of(dtype), " are not supported on a GPU"));
  }
}

/// Everything about a product except its pointers.
struct PreparedMatmul {
  std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(CublasLt::desc_destroy)> description;
  std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(CublasLt::layout_destroy)> a, b, d;
  std::optional<cublasLtMatmulAlgo_t> algorithm = {};  ///< empty: the library has no kernel for the product
};

/// True if the library does not run this algorithm for this product.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/// cuBLASLt on one GPU.
class Library {
 public:
  explicit Library(Gpu& gpu) : gpu_(gpu), lt_(cublas_lt()) {
    const cublasStatus_t status = lt_.create(&handle_);
    if (status != CUBLAS_STATUS_SUCCESS) throw InternalError(concat("cublasLtCreate: ", lt_.status_string(status)));
  }
  ~Library() {
    plans_.clear();
    lt_.destroy(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Returns false and queues nothing if the library has no kernel for the product.
  bool run(Product product);

  void note_plain(const Product::Kind& kind);

  /// time_products() and use_algorithms().
  std::vector<ProductTimes> time(const ProductAlgorithms& known, const std::function<void()>& body);
  void use(const ProductAlgorithms& algorithms);

  ProductCounts counts;
  std::vector<std::string> plain_shapes;  ///< each once

 private:
  PreparedMatmul prepare_matmul(const Product& product);
  std::optional<cublasLtMatmulAlgo_t> choose(const Product& product, const PreparedMatmul& plan);
  std::vector<cublasLtMatmulAlgo_t> candidates(const Product& product, const PreparedMatmul& plan, int most);
  std::optional<cublasLtMatmulAlgo_t> time_candidates(const Product& product, const PreparedMatmul& plan,
                                                      const std::vector<cublasLtMatmulAlgo_t>& all);
  std::string text_of(const cublasLtMatmulAlgo_t& algorithm) const;
  bool uses_tf32(const Product::Kind& kind) const { return kind.in == DType::kF32 && gpu_.options().tf32; }
  /// The name of the kind in ProductAlgorithms.
  std::string key_of(const Product::Kind& kind) const { return trireme::cuda::text_of(kind) + (uses_tf32(kind) ? ", TF32" : ""); }
  cublasStatus_t queue(const Product& product, const PreparedMatmul& plan, const cublasLtMatmulAlgo_t& algorithm);
  void set_pointers(const Product& product, const PreparedMatmul& plan);
  template <class Value>
  void set(const Product& product, const PreparedMatmul& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(lt_, lt_.desc_set(plan.description.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute", product);
  }

  Gpu& gpu_;
  const CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Product::Kind, PreparedMatmul> plans_;
  ProductAlgorithms algorithms_;                     ///< set by use()
  std::optional<std::vector<ProductTimes>> timing_;  ///< set while time() runs
};

/// Products of depth 0 are not the library's, which rejects empty matrices.
void Library::note_plain(const Product::Kind& kind) {
  ++counts.plain;
  if (kind.k == 0) return;
  const std::string shape = shape_of(kind);
  if (std::ranges::find(plain_shapes, shape) == plain_shapes.end()) plain_shapes.push_back(shape);
}

bool Library::run(Product product) {
  if (const int free = gpu_.options().communication_multiprocessors; free > 0 && gpu_.communicates())
    product.kind.multiprocessors = gpu_.properties().multiprocessors - free;
  auto found = plans_.find(product.kind);
  if (found == plans_.end()) found = plans_.emplace(product.kind, prepare_matmul(product)).first;
  const PreparedMatmul& plan = found->second;
  if (!plan.algorithm) return false;
  set_pointers(product, plan);
  check(lt_, queue(product, plan, *plan.algorithm), "cublasLtMatmul", product);
  ++counts.library;
  return true;
}

cublasStatus_t Library::queue(const Product& product, const PreparedMatmul& plan, const cublasLtMatmulAlgo_t& algorithm) {
  const float alpha = 1, beta = product.accumulate ? 1 : 0;
  const Gpu::State& state = gpu_.state();
  return lt_.matmul(handle_, plan.description.get(), &alpha, product.a, plan.a.get(), product.b, plan.b.get(), &beta, product.d, plan.d.get(),
                    product.d, plan.d.get(), &algorithm, state.workspace, static_cast<size_t>(state.workspace_bytes), state.compute);
}

/// Plans hold algorithms, so they are made again.
void Library::use(const ProductAlgorithms& algorithms) {
  algorithms_ = algorithms;
  plans_.clear();
}

std::vector<ProductTimes> Library::time(const ProductAlgorithms& known, const std::function<void()>& body) {
  TRIREME_CHECK(!gpu_.holds_graphs(), "matrix products cannot be timed while a CUDA graph exists");
  use(known);
  timing_.emplace();
  body();
  return *std::exchange(timing_, std::nullopt);
}

/// The library's choice also depends on the alignment of these two pointers.
void Library::set_pointers(const Product& product, const PreparedMatmul& plan) {
  if (product.bias != nullptr) set(product, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.hidden != nullptr) set(product, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.hidden);
}

PreparedMatmul Library::prepare_matmul(const Product& product) {
  const Product::Kind& kind = product.kind;
  cublasLtMatmulDesc_t description = nullptr;
  check(lt_, lt_.desc_create(&description, uses_tf32(kind) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate", product);
  const auto layout = [&](DType dtype, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(lt_, lt_.layout_create(&made, cuda_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate", product);
    return std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(CublasLt::layout_destroy)>(made, lt_.layout_destroy);
  };
  PreparedMatmul plan{{description, lt_.desc_destroy},
                      kind.transpose_a ? layout(kind.in, kind.k, kind.m) : layout(kind.in, kind.m, kind.k),
                      kind.transpose_b ? layout(kind.in, kind.n, kind.k) : layout(kind.in, kind.k, kind.n),
                      layout(kind.out, kind.m, kind.n)};
  const auto transform = [](bool transpose) { return static_cast<int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N); };
  set(product, plan, CUBLASLT_MATMUL_DESC_TRANSA, transform(kind.transpose_a));
  set(product, plan, CUBLASLT_MATMUL_DESC_TRANSB, transform(kind.transpose_b));
  set(product, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(kind.epilogue));
  if (product.hidden != nullptr) set(product, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, kind.m);
  if (product.bias != nullptr) set(product, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(cuda_type(kind.in)));
  if (kind.multiprocessors > 0) set(product, plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, kind.multiprocessors);
  set_pointers(product, plan);
  plan.algorithm = choose(product, plan);
  return plan;
}

std::optional<cublasLtMatmulAlgo_t> Library::choose(const Product& product, const PreparedMatmul& plan) {
  constexpr int kCandidates = 8;
  const std::string key = key_of(product.kind);
  const auto known = algorithms_.find(key);
  const std::vector<cublasLtMatmulAlgo_t> all = candidates(product, plan, timing_ || known != algorithms_.end() ? kCandidates : 1);
  if (all.empty()) return std::nullopt;
  if (known != algorithms_.end()) {
    const auto same = std::ranges::find(all, known->second, [&](const cublasLtMatmulAlgo_t& algorithm) { return text_of(algorithm); });
    if (same != all.end()) {
      if (timing_) timing_->push_back({key, {known->second}, {0}});
      return *same;
    }
  }
  return timing_ ? time_candidates(product, plan, all) : all.front();
}

/// Returns the first usable candidate, or none if cuBLASLt refuses to run any.
std::optional<cublasLtMatmulAlgo_t> Library::time_candidates(const Product& product, const PreparedMatmul& plan,
                                                             const std::vector<cublasLtMatmulAlgo_t>& all) {
  ProductTimes times{key_of(product.kind), {}, {}};
  std::vector<cublasLtMatmulAlgo_t> usable;
  for (const cublasLtMatmulAlgo_t& algorithm : all) {
    const std::string text = text_of(algorithm);
    if (std::ranges::find(times.algorithms, text) != times.algorithms.end()) continue;
    const cublasStatus_t status = queue(product, plan, algorithm);  // the first run also loads the kernel
    if (is_refusal(status)) continue;
    check(lt_, status, "cublasLtMatmul", product);
    usable.push_back(algorithm);
    times.algorithms.push_back(text);
  }
  if (usable.empty()) return std::nullopt;

  // The candidates take turns, so that work on other streams disturbs none of them more than the others.
  constexpr int kRounds = 3;
  std::vector<std::pair<Event, Event>> runs;
  for (int round = 0; round < kRounds; ++round)
    for (const cublasLtMatmulAlgo_t& algorithm : usable) {
      const Event begin = gpu_.record_time(gpu_.compute());
      check(lt_, queue(product, plan, algorithm), "cublasLtMatmul", product);
      runs.emplace_back(begin, gpu_.record_time(gpu_.compute()));
    }
  times.seconds.assign(usable.size(), std::numeric_limits<double>::infinity());
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto [begin, end] = runs[run];
    double& shortest = times.seconds[run % usable.size()];
    shortest = std::min(shortest, gpu_.seconds_between(begin, end));
    gpu_.recycle_time(begin);
    gpu_.recycle_time(end);
  }
  timing_->push_back(std::move(times));
  return usable.front();
}

/// The configuration of an algorithm, which its number alone does not determine. Unlike the opaque struct, it can be compared between processes.
std::string Library::text_of(const cublasLtMatmulAlgo_t& algorithm) const {
  struct Attribute {
    const char* name;
    cublasLtMatmulAlgoConfigAttributes_t key;
    size_t bytes;
  };
  static constexpr Attribute kAttributes[] = {
      {"id", CUBLASLT_ALGO_CONFIG_ID, 4},
      {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
      {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
      {"split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
      {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
      {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
      {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
      {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
      {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
  };
  std::string text;
  for (const Attribute& attribute : kAttributes) {
    uint32_t value = 0;  // its low bytes come first on every host of these GPUs, so an attribute of two bytes is read correctly
    size_t written = 0;
    if (lt_.algorithm_get(&algorithm, attribute.key, &value, attribute.bytes, &written) != CUBLAS_STATUS_SUCCESS) continue;
    text += concat(text.empty() ? "" : " ", attribute.name, " ", value);
  }
  return text;
}

/// At most `most` algorithms of the heuristic, the fastest by its estimate first. Empty: the library has no kernel for the product.
std::vector<cublasLtMatmulAlgo_t> Library::candidates(const Product& product, const PreparedMatmul& plan, int most) {
  ++counts.plans;
  cublasLtMatmulPreference_t made = nullptr;
  check(lt_, lt_.preference_create(&made), "cublasLtMatmulPreferenceCreate", product);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(CublasLt::preference_destroy)> preference(made, lt_.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(lt_, lt_.preference_set(preference.get(), attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute", product);
  };
  const Product::Kind& kind = product.kind;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(gpu_.state().workspace_bytes));
  // Split-K partial sums stay in fp32 and are added in a fixed order; the other schemes round them to the output's dtype.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(kind.alignment_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(kind.alignment_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(kind.alignment_d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(kind.alignment_d));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = lt_.heuristic(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
                                              preference.get(), most, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(lt_, status, "cublasLtMatmulAlgoGetHeuristic", product);
  std::vector<cublasLtMatmulAlgo_t> usable;
  for (int i = 0; i < count; ++i)
    if (const auto& result = results[static_cast<size_t>(i)]; result.state == CUBLAS_STATUS_SUCCESS) usable.push_back(result.algo);
  return usable;
}

Library& library(const Context& ctx) { return ctx.gpu->state().library<Library>(*ctx.gpu); }

/// Computes the product, with the bias if any, with the plain kernel. Its rows are the columns here.
void run_plain(const Context& ctx, const Product& product, const void* bias) {
  const Product::Kind& kind = product.kind;
  library(ctx).note_plain(kind);
  plain_product(ctx, {.rows = kind.n,
                      .columns = kind.m,
                      .depth = kind.k,
                      .in = kind.in,
                      .out_dtype = kind.out,
                      .left = product.b,
                      .left_row = kind.transpose_b ? 1 : kind.k,
                      .left_k = kind.transpose_b ? kind.n : 1,
                      .right = product.a,
                      .right_column = kind.transpose_a ? kind.k : 1,
                      .right_k = kind.transpose_a ? 1 : kind.m,
                      .bias = bias,
                      .out = product.d,
                      .accumulate = product.accumulate});
}

/// Returns false for k = 0 too, which the plain kernel computes: the library rejects empty matrices.
bool run_library(const Context& ctx, const Product& product) { return product.kind.k > 0 && library(ctx).run(product); }

Product product_of(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& d, int64_t depth, bool accumulate) {
  return {{d.dim(1), d.dim(0), depth, transpose_a, transpose_b, a.dtype(), d.dtype(), CUBLASLT_EPILOGUE_DEFAULT, alignment_of(a.raw()),
           alignment_of(b.raw()), alignment_of(d.raw())},
          a.raw(),
          b.raw(),
          d.raw(),
          accumulate};
}

}  // namespace

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  if (y.numel() == 0) return;
  const Product product = product_of(w, true, x, false, y, x.dim(1), false);
  if (bias.defined() && alignment_of(bias.raw()) == kFull) {
    Product with_bias = product;
    with_bias.kind.epilogue = CUBLASLT_EPILOGUE_BIAS;
    with_bias.bias = bias.raw();
    if (run_library(ctx, with_bias)) return;
  }
  if (!run_library(ctx, product)) return run_plain(ctx, product, bias.defined() ? bias.raw() : nullptr);
  if (bias.defined()) bias_forward(ctx, bias, y);
}

void linear_gelu_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& hidden, const Tensor& y) {
  if (y.numel() == 0) return;
  // The epilogue's tanh is an approximation, accurate enough for bf16 only (fp16 has three more bits), and it requires aligned rows of `hidden`.
  const bool fits = y.dtype() == DType::kBF16 && y.dim(1) % 8 == 0 && alignment_of(hidden.raw()) == kFull && alignment_of(bias.raw()) == kFull;
  if (fits) {
    Product product = product_of(w, true, x, false, y, x.dim(1), false);
    product.kind.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    product.bias = bias.raw();
    product.hidden = hidden.raw();
    if (run_library(ctx, product)) return;
  }
  linear_forward(ctx, x, w, bias, hidden);
  gelu_forward(ctx, hidden, y, Gelu::kTanh);
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const Product product = product_of(w, false, dy, false, dx, dy.dim(1), false);
  if (!run_library(ctx, product)) run_plain(ctx, product, nullptr);
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add) {
  if (dw.numel() == 0 || (add && x.dim(0) == 0)) return;
  const Product product = product_of(x, false, dy, true, dw, x.dim(0), add);
  if (!run_library(ctx, product)) run_plain(ctx, product, nullptr);
}

std::string library_versions(Gpu& gpu) {
  gpu.state().library<Library>(gpu);
  const auto cublas = static_cast<int>(cublas_lt().version());
  const auto cuda = [](int version) { return concat(version / 1000, ".", version % 1000 / 10); };
  return concat("cuBLASLt ", cublas / 10000, ".", cublas % 10000 / 100, ".", cublas % 100, ", CUDA runtime ", cuda(gpu.properties().runtime),
                ", driver ", cuda(gpu.properties().driver));
}

ProductCounts product_counts(Gpu& gpu) { return gpu.state().library<Library>(gpu).counts; }

std::vector<std::string> plain_shapes(Gpu& gpu) { return gpu.state().library<Library>(gpu).plain_shapes; }

std::vector<ProductTimes> time_products(Gpu& gpu, const ProductAlgorithms& known, const std::function<void()>& body) {
  return gpu.state().library<Library>(gpu).time(known, body);
}

void use_algorithms(Gpu& gpu, const ProductAlgorithms& algorithms) { gpu.state().library<Library>(gpu).use(algorithms); }

}  // namespace trireme::cuda
