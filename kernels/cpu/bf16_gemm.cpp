#include "kernels/cpu/bf16_gemm.h"

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>

#include "kernels/cpu/scoped_omp_threads.h"

namespace trireme::cpu {
namespace {

using dnnl::memory;

/// Cache key of a oneDNN primitive. A primitive is created for a fixed number of threads.
struct Product {
  int64_t m, n, k;
  bool a_transposed, b_transposed, b_packed, bias, accumulate, wide;
  int threads;
  auto operator<=>(const Product&) const = default;
};

memory::desc describe(int64_t rows, int64_t columns, memory::data_type type, bool transposed) {
  return {{rows, columns}, type, transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

dnnl::matmul::primitive_desc describe_product(const Product& product, const memory::desc& a, const memory::desc& b, const memory::desc& bias,
                                              const memory::desc& c, const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  if (product.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return product.bias ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attributes) : dnnl::matmul::primitive_desc(engine, a, b, c, attributes);
#else
  return {product.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attributes, engine};
#endif
}

/// oneDNN allocates the scratch memory, once for all primitives of a thread: a few MB, outside the arena.
struct Primitive {
  memory::desc a, b, packed_b, bias, c;
  std::optional<dnnl::matmul> matmul;  ///< empty if oneDNN has no kernel for this CPU
  std::optional<dnnl::reorder> pack;

  Primitive(const Product& product, const dnnl::engine& engine)
      : a(describe(product.m, product.k, memory::data_type::bf16, product.a_transposed)),
        b(describe(product.k, product.n, memory::data_type::bf16, product.b_transposed)),
        bias(describe(1, product.n, memory::data_type::bf16, false)),
        c(describe(product.m, product.n, product.wide ? memory::data_type::f32 : memory::data_type::bf16, false)) {
    try {
      const memory::desc any({product.k, product.n}, memory::data_type::bf16, memory::format_tag::any);
      const auto description = describe_product(product, a, product.b_packed ? any : b, bias, c, engine);
      packed_b = description.weights_desc();
      if (packed_b != b) pack.emplace(dnnl::reorder::primitive_desc(engine, b, engine, packed_b));
      matmul.emplace(description);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw InternalError(concat("oneDNN cannot create a bf16 matmul: ", error.message));
    }
  }
};

/// One per thread, because ranks may be threads and a primitive's scratch memory serves one execution at a time.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Product, Primitive> primitives;

  const Primitive& primitive(const Product& product) {
    constexpr size_t kMost = 512;  // a model has a few dozen shapes; only a caller whose shapes never repeat reaches this
    if (const auto found = primitives.find(product); found != primitives.end()) return found->second;
    if (primitives.size() >= kMost) primitives.clear();
    return primitives.try_emplace(product, product, engine).first->second;
  }

  memory at(const memory::desc& description, const Tensor& tensor) const { return {description, engine, tensor.raw()}; }
};

/// Whether to reorder b into oneDNN's own layout first. Otherwise oneDNN packs it piece by piece during the product, again for each row block of a.
/// With many rows (weight gradients) the copy pays off.
bool packing_pays(const MatrixOperand& a) {
  constexpr int64_t kRows = 256;
  return a.transposed && a.rows() >= kRows;
}

}  // namespace

bool bf16_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, const Tensor& bias, bool accumulate, const Tensor& c) {
  const int64_t m = a.rows(), n = b.columns(), k = a.columns();
  thread_local Library library;
  const ScopedOmpThreads team(ctx.threads);
  const Primitive& primitive =
      library.primitive({m, n, k, a.transposed, b.transposed, packing_pays(a), bias.defined(), accumulate, c.dtype() == DType::kF32, ctx.threads});
  if (!primitive.matmul) return false;
  try {
    memory weights = library.at(primitive.b, b.matrix);
    Tensor packed;
    if (primitive.pack) {
      const auto elements = static_cast<int64_t>(primitive.packed_b.get_size()) / size_of(DType::kBF16);
      packed = Tensor::empty(ctx, {elements}, DType::kBF16, MemoryCategory::kWorkspace);
      memory target = library.at(primitive.packed_b, packed);
      primitive.pack->execute(library.stream, weights, target);
      weights = target;
    }
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, library.at(primitive.a, a.matrix)}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, library.at(primitive.c, c)}};
    if (bias.defined()) arguments.emplace(DNNL_ARG_BIAS, library.at(primitive.bias, bias));
    primitive.matmul->execute(library.stream, arguments);
    library.stream.wait();
  } catch (const dnnl::error& error) {
    throw InternalError(concat("oneDNN bf16 matmul failed: ", error.message));
  }
  return true;
}

}  // namespace trireme::cpu
