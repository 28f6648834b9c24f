#include "tests/cuda_sim/cublas_lt.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "tests/cuda_sim/cublas_lt_product.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/machine.h"

namespace cuda_sim {
namespace {

std::atomic<int64_t> g_heuristics, g_refused, g_products, g_fused_gelu, g_live_objects, g_limited, g_invalid;
AlgorithmBehaviour g_behaviour;  // changed between runs only

// ---- the objects behind the opaque handles ----

template <class Derived, uint64_t kTag>
struct Tagged {
  uint64_t tag = kTag;
  Tagged() { ++g_live_objects; }
  Tagged(const Tagged& other) : tag(other.tag) { ++g_live_objects; }
  Tagged& operator=(const Tagged&) = delete;
  ~Tagged() {
    tag = 0;
    --g_live_objects;
  }
  template <class Opaque>
  static Derived* of(Opaque* handle) {
    auto* const object = reinterpret_cast<Derived*>(handle);
    return object != nullptr && object->tag == kTag ? object : nullptr;
  }
};

struct Handle : Tagged<Handle, 0x4841> {
  int device = current_device();
};
struct Description : Tagged<Description, 0x4445> {
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  ///< negative: the type of d
  void* aux = nullptr;
  int64_t aux_ld = 0;
  int32_t multiprocessors = 0;
};
struct Layout : Tagged<Layout, 0x4C41> {
  cudaDataType_t type{};
  int64_t rows = 0, columns = 0, ld = 0;
};
struct Preference : Tagged<Preference, 0x5052> {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

template <class Object, class Opaque>
cublasStatus_t destroy(Opaque* handle) {
  Object* const object = Object::of(handle);
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t store(Value& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- validation of the problem ----

bool sound(const Layout* layout) {
  return layout != nullptr && (layout->type == CUDA_R_32F || layout->type == CUDA_R_16BF || layout->type == CUDA_R_16F) && layout->rows > 0 &&
         layout->columns > 0 && layout->ld >= layout->rows;
}

bool read_problem(const Description* desc, const Layout* a, const Layout* b, const Layout* c, const Layout* d, Problem& problem) {
  if (desc == nullptr || !sound(a) || !sound(b) || !sound(c) || !sound(d)) return false;
  const bool tf32 = desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if ((!tf32 && desc->compute != CUBLAS_COMPUTE_32F) || desc->scale != CUDA_R_32F || desc->pointer_mode != CUBLASLT_POINTER_MODE_HOST) return false;
  const bool transpose_a = desc->transpose_a == CUBLAS_OP_T, transpose_b = desc->transpose_b == CUBLAS_OP_T;
  const int64_t m = transpose_a ? a->columns : a->rows, k = transpose_a ? a->rows : a->columns;
  const int64_t n = transpose_b ? b->rows : b->columns, k_of_b = transpose_b ? b->columns : b->rows;
  if (k != k_of_b || d->rows != m || d->columns != n || c->rows != m || c->columns != n) return false;
  if (a->type != b->type || c->type != d->type) return false;
  problem = {m,
             n,
             k,
             a->ld,
             b->ld,
             c->ld,
             d->ld,
             desc->aux_ld,
             transpose_a,
             transpose_b,
             tf32,
             a->type,
             d->type,
             desc->bias_type < 0 ? d->type : static_cast<cudaDataType_t>(desc->bias_type),
             desc->epilogue,
             desc->multiprocessors};
  if (problem.multiprocessors < 0 || problem.multiprocessors > kMultiprocessors) return false;
  if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !problem.has_bias()) return false;
  if (problem.has_bias() && desc->bias == nullptr) return false;
  return !problem.has_gelu() || (desc->aux != nullptr && desc->aux_ld >= m && desc->aux_ld % 8 == 0);  // cublasLt.h, EPILOGUE_AUX_LD
}

/// Types with fp32 sums: cuBLAS documentation, cublasLtMatmul(), table of supported data types.
struct Types {
  cudaDataType_t in, out, bias;
  bool tf32;
};
constexpr Types kSupported[] = {
    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, false}, {CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, false}, {CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, false},
    {CUDA_R_16F, CUDA_R_32F, CUDA_R_32F, false},    {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, false},  {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, true},
};
bool types_supported(const Problem& p) {
  return std::any_of(std::begin(kSupported), std::end(kSupported), [&](const Types& types) {
    return types.in == p.in && types.out == p.out && types.tf32 == p.tf32 && (!p.has_bias() || types.bias == p.bias_type);
  });
}

bool aligned(const void* pointer, int64_t alignment) { return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0; }

/// The contents of a cublasLtMatmulAlgo_t: the problem and alignments for which the heuristic returned it.
struct Algorithm {
  uint32_t tag;
  uint32_t alignments;  ///< one byte each, a b c d, as powers of two
  uint64_t problem;     ///< hash
  uint64_t workspace;
  int64_t place;  ///< in the heuristic's list

  int64_t alignment(int operand) const { return int64_t{1} << (alignments >> 8 * operand & 0xFF); }
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint32_t kAlgorithmTag = 0x414C474F;

uint64_t hash(const Problem& p) {
  uint64_t value = 1469598103934665603U;
  for (int64_t part : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.ldd, p.aux_ld, int64_t{p.transpose_a}, int64_t{p.transpose_b}, int64_t{p.tf32},
                       static_cast<int64_t>(p.in), static_cast<int64_t>(p.out), static_cast<int64_t>(p.bias_type), int64_t{p.epilogue},
                       int64_t{p.multiprocessors}}) {
    value = (value ^ static_cast<uint64_t>(part)) * 1099511628211U;
  }
  return value;
}

/// True if all columns of a matrix whose first element is aligned to `base` are 4-byte aligned.
bool columns_aligned(int64_t base, int64_t ld, cudaDataType_t type) { return base % 4 == 0 && ld * size_of(type) % 4 == 0; }

/// True if every pointer is memory of the device with the alignment that the heuristic assumed.
bool pointers_sound(const Call& call, const Algorithm& algorithm, uint64_t workspace_bytes, int device) {
  const Problem& p = call.problem;
  const auto on_device = [&](const void* memory, int64_t bytes) {
    return memory != nullptr && is_device_memory(memory, static_cast<size_t>(bytes), device);
  };
  const auto result_bytes = [&](int64_t ld) { return (ld * (p.n - 1) + p.m) * size_of(p.out); };
  if (!on_device(call.a, p.a_bytes()) || !on_device(call.b, p.b_bytes()) || !on_device(call.d, result_bytes(p.ldd))) return false;
  if (call.beta != 0 && !on_device(call.c, result_bytes(p.ldc))) return false;
  if (!aligned(call.a, algorithm.alignment(0)) || !aligned(call.b, algorithm.alignment(1)) || !aligned(call.c, algorithm.alignment(2)) ||
      !aligned(call.d, algorithm.alignment(3))) {
    return false;
  }
  if (p.has_bias() && (!on_device(call.bias, p.m * size_of(p.bias_type)) || !aligned(call.bias, 16))) return false;
  if (p.has_gelu() && (!on_device(call.aux, result_bytes(p.aux_ld)) || !aligned(call.aux, 16))) return false;
  if (algorithm.workspace == 0) return true;
  return workspace_bytes >= algorithm.workspace && on_device(call.workspace, static_cast<int64_t>(workspace_bytes)) && aligned(call.workspace, 16);
}

class Product final : public Operation {
 public:
  Product(const Call& call, std::optional<double> seconds) : call_(call), seconds_(seconds) {}
  std::string name() const override {
    const Problem& p = call_.problem;
    return "cublasLtMatmul m " + std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k);
  }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Product>(call_, seconds_); }
  void run() override { compute(call_); }
  std::optional<double> own_seconds() const override { return seconds_; }

 private:
  Call call_;
  std::optional<double> seconds_;
};

}  // namespace

void set_algorithms(const AlgorithmBehaviour& behaviour) { g_behaviour = behaviour; }

CublasLtStatistics cublas_lt_statistics() { return {g_heuristics, g_refused, g_products, g_fused_gelu, g_live_objects, g_limited, g_invalid}; }

cublasStatus_t lt_create(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t lt_destroy(cublasLtHandle_t handle) { return destroy<Handle>(handle); }
size_t lt_version() { return CUBLAS_VERSION; }
const char* lt_status_string(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the requested functionality is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return "unknown status";
  }
}

cublasStatus_t lt_desc_create(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto description = std::make_unique<Description>();
  description->compute = compute;
  description->scale = scale;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(description.release());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t lt_desc_destroy(cublasLtMatmulDesc_t desc) { return destroy<Description>(desc); }
cublasStatus_t lt_desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
  Description* const description = Description::of(desc);
  if (description == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return store(description->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return store(description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return store(description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return store(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return store(description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return store(description->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return store(description->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return store(description->multiprocessors, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return store(description->aux_ld, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t lt_layout_create(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto made = std::make_unique<Layout>();
  made->type = type;
  made->rows = static_cast<int64_t>(rows);
  made->columns = static_cast<int64_t>(columns);
  made->ld = ld;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(made.release());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t lt_layout_destroy(cublasLtMatrixLayout_t layout) { return destroy<Layout>(layout); }

cublasStatus_t lt_preference_create(cublasLtMatmulPreference_t* preference) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t lt_preference_destroy(cublasLtMatmulPreference_t preference) { return destroy<Preference>(preference); }
cublasStatus_t lt_preference_set(cublasLtMatmulPreference_t handle, cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes) {
  Preference* const preference = Preference::of(handle);
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return store(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return store(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return store(preference->alignment_a, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return store(preference->alignment_b, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return store(preference->alignment_c, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return store(preference->alignment_d, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t lt_heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference_handle, int wanted,
                            cublasLtMatmulHeuristicResult_t results[], int* count) {
  const Preference* const preference = Preference::of(preference_handle);
  const Description* const description = Description::of(desc);
  Problem problem{};
  if (Handle::of(handle) == nullptr || preference == nullptr || wanted < 1 || results == nullptr || count == nullptr ||
      !read_problem(description, Layout::of(a), Layout::of(b), Layout::of(c), Layout::of(d), problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (uint32_t alignment : {preference->alignment_a, preference->alignment_b, preference->alignment_c, preference->alignment_d}) {
    if (!std::has_single_bit(alignment) || alignment > 256) return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++g_heuristics;
  *count = 0;
  const bool has_kernel =
      types_supported(problem) && !is_refused_at_random() && columns_aligned(preference->alignment_a, problem.lda, problem.in) &&
      columns_aligned(preference->alignment_b, problem.ldb, problem.in) && columns_aligned(preference->alignment_c, problem.ldc, problem.out) &&
      columns_aligned(preference->alignment_d, problem.ldd, problem.out) && (!problem.has_bias() || aligned(description->bias, 16)) &&
      (!problem.has_gelu() || aligned(description->aux, 16)) && workspace_of(problem, 1) <= preference->workspace;
  if (!has_kernel) {
    ++g_refused;
    return problem.m % 2 == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;  // the real library does both
  }
  const auto power = [](uint32_t alignment) { return static_cast<uint32_t>(std::countr_zero(alignment)); };
  for (; *count < std::min(wanted, kAlgorithms) && workspace_of(problem, *count + 1) <= preference->workspace; ++*count) {
    const Algorithm algorithm{kAlgorithmTag,
                              power(preference->alignment_a) | power(preference->alignment_b) << 8 | power(preference->alignment_c) << 16 |
                                  power(preference->alignment_d) << 24,
                              hash(problem), workspace_of(problem, *count + 1), *count};
    cublasLtMatmulHeuristicResult_t& result = results[*count];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof(algorithm));
    result.workspaceSize = algorithm.workspace;
    result.state = *count == g_behaviour.unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t lt_algorithm_get(const cublasLtMatmulAlgo_t* handle, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                                size_t* written) {
  Algorithm algorithm{};
  if (handle != nullptr) std::memcpy(&algorithm, handle, sizeof(algorithm));
  const bool narrow = attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  const uint32_t number = attribute == CUBLASLT_ALGO_CONFIG_ID           ? static_cast<uint32_t>(g_behaviour.identity + algorithm.place)
                          : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? static_cast<uint32_t>(algorithm.place + 1)
                                                                         : 0;
  if (algorithm.tag != kAlgorithmTag || value == nullptr || written == nullptr || bytes != (narrow ? 2 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t lt_matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                         const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm_handle, void* workspace, size_t workspace_bytes,
                         cudaStream_t stream) {
  const Handle* const library = Handle::of(handle);
  const Description* const description = Description::of(desc);
  Call call{};
  if (library == nullptr || alpha == nullptr || beta == nullptr || algorithm_handle == nullptr ||
      !read_problem(description, Layout::of(a_layout), Layout::of(b_layout), Layout::of(c_layout), Layout::of(d_layout), call.problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (library->device != current_device() || library->device != device_of(stream)) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm algorithm{};
  std::memcpy(&algorithm, algorithm_handle, sizeof(algorithm));
  if (algorithm.tag != kAlgorithmTag || algorithm.problem != hash(call.problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(&call.alpha, alpha, sizeof(float));
  std::memcpy(&call.beta, beta, sizeof(float));
  call.a = a, call.b = b, call.c = c, call.d = d, call.bias = description->bias, call.aux = description->aux, call.workspace = workspace;
  if (!pointers_sound(call, algorithm, workspace_bytes, library->device)) {
    ++g_invalid;
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.place == g_behaviour.unusable || algorithm.place == g_behaviour.refused) return CUBLAS_STATUS_NOT_SUPPORTED;
  call.slices = algorithm.place + 1;
  ++g_products;
  if (call.problem.has_gelu()) ++g_fused_gelu;
  if (call.problem.multiprocessors > 0) ++g_limited;
  std::optional<double> seconds;
  if (g_behaviour.seconds) seconds = g_behaviour.seconds(library->device, static_cast<int>(algorithm.place));
  return enqueue(stream, std::make_unique<Product>(call, seconds)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace cuda_sim
