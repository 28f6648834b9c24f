#include "kernels/cpu/bf16_gemm.h"

#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "kernels/cpu/team_size.h"
#include "kernels/cpu/widen.h"

namespace trireme::cpu {
namespace {

/// What a primitive of oneDNN is made for. It fixes the number of threads.
struct Product {
  int64_t m, n, k;
  bool a_transposed, b_transposed, accumulate, wide;
  int threads;
  auto operator<=>(const Product&) const = default;
};

dnnl::memory::desc describe(int64_t rows, int64_t columns, dnnl::memory::data_type type, bool transposed) {
  return {{rows, columns}, type, transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1}};
}

struct Primitive {
  dnnl::memory::desc a, b, c;
  std::optional<dnnl::matmul> matmul;  ///< nothing where oneDNN has none for this CPU

  Primitive(const Product& product, const dnnl::engine& engine)
      : a(describe(product.m, product.k, dnnl::memory::data_type::bf16, product.a_transposed)),
        b(describe(product.k, product.n, dnnl::memory::data_type::bf16, product.b_transposed)),
        c(describe(product.m, product.n, product.wide ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16, false)) {
    dnnl::primitive_attr attributes;
    if (product.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    try {
#if DNNL_VERSION_MAJOR >= 3
      matmul.emplace(dnnl::matmul::primitive_desc(engine, a, b, c, attributes));
#else
      matmul.emplace(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine));
#endif
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw InternalError(concat("oneDNN makes no bf16 product: ", error.message));
    }
  }
};

/// Of one thread, as ranks may be threads and a primitive's scratch memory serves one execution at a time.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Product, Primitive> primitives;

  const Primitive& primitive(const Product& product) {
    constexpr size_t kMost = 512;  // a model has a few dozen shapes; only a caller whose shapes never repeat gets here
    if (primitives.size() >= kMost) primitives.clear();
    return primitives.try_emplace(product, product, engine).first->second;
  }
};

void widened_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, int64_t m, int64_t n, int64_t k, bool accumulate,
                  const Tensor& c) {
  const Tensor wide_a = widen(ctx, a.matrix), wide_b = widen(ctx, b.matrix);
  const bool wide = c.dtype() == DType::kF32;
  const Tensor wide_c = wide ? c : accumulate ? widen(ctx, c) : scratch_f32(c.shape());
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0F, wide_a.data<float>(), a.stride(),
                                          wide_b.data<float>(), b.stride(), accumulate ? 1.0F : 0.0F, wide_c.data<float>(), n);
  TRIREME_CHECK(status == dnnl_success, "dnnl_sgemm returned ", static_cast<int>(status));
  if (!wide) round_to(ctx, wide_c, c);
}

}  // namespace

void bf16_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, int64_t m, int64_t n, int64_t k, bool accumulate,
               const Tensor& c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (!accumulate) std::memset(c.raw(), 0, static_cast<size_t>(c.bytes()));
    return;
  }
  thread_local Library library;
  const TeamSize team(ctx.threads);
  const Primitive& primitive = library.primitive({m, n, k, a.transposed, b.transposed, accumulate, c.dtype() == DType::kF32, ctx.threads});
  if (!primitive.matmul) return widened_gemm(ctx, a, b, m, n, k, accumulate, c);
  const auto memory = [](const dnnl::memory::desc& description, const Tensor& tensor) {
    return dnnl::memory(description, library.engine, tensor.raw());
  };
  try {
    primitive.matmul->execute(
        library.stream,
        {{DNNL_ARG_SRC, memory(primitive.a, a.matrix)}, {DNNL_ARG_WEIGHTS, memory(primitive.b, b.matrix)}, {DNNL_ARG_DST, memory(primitive.c, c)}});
    library.stream.wait();
  } catch (const dnnl::error& error) {
    throw InternalError(concat("oneDNN failed in a bf16 product: ", error.message));
  }
}

}  // namespace trireme::cpu
