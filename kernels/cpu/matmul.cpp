#include "kernels/cpu/matmul.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/bf16_gemm.h"
#include "kernels/cpu/bias.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scoped_omp_threads.h"

namespace trireme::cpu {
namespace {

/// c [m,n] = a [m,k] b [k,n], or c += a b, in fp32. dnnl_sgemm reads its operands in place; oneDNN's matmul primitive, which packs them on the fly,
/// is slower at the sizes of a model.
void f32_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, bool accumulate, const Tensor& c) {
  const ScopedOmpThreads team(ctx.threads);
  const int64_t n = b.columns();
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', a.rows(), n, a.columns(), 1.0F, a.matrix.data<float>(),
                                          a.stride(), b.matrix.data<float>(), b.stride(), accumulate ? 1.0F : 0.0F, c.data<float>(), n);
  TRIREME_CHECK(status == dnnl_success, "dnnl_sgemm returned ", static_cast<int>(status));
}

/// The columns of a matrix from `first` on.
struct Columns {
  const Tensor& matrix;
  int64_t first;
};

Tensor scratch(const Context& ctx, int64_t rows, int64_t columns) {
  return Tensor::empty(ctx, {rows, columns}, DType::kF32, MemoryCategory::kWorkspace);
}

/// For each row, calls kernel(row of `narrow` from its first column on, row of `wide`, columns).
template <class T, class Kernel>
void for_rows(const Context& ctx, const Columns& narrow, const Tensor& wide, const Kernel& kernel) {
  const int64_t columns = wide.dim(1), stride = narrow.matrix.dim(1);
  T* const from = narrow.matrix.data<T>() + narrow.first;
  float* const to = wide.data<float>();
  parallel_for(ctx, wide.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) kernel(from + r * stride, to + r * columns, columns);
  });
}

template <class Body>
void dispatch_narrow(DType dtype, Body&& body) {
  if (dtype == DType::kBF16) return body(bfloat16{});
  return body(float16{});
}

/// `count` columns converted to fp32.
Tensor widened(const Context& ctx, const Columns& narrow, int64_t count) {
  const Tensor wide = scratch(ctx, narrow.matrix.dim(0), count);
  dispatch_narrow(narrow.matrix.dtype(), [&]<class T>(T) {
    for_rows<T>(ctx, narrow, wide, [kernel = typed_kernels<T>(ctx).to_f32](const T* from, float* to, int64_t n) { kernel({from, to}, 0, n); });
  });
  return wide;
}
Tensor widened(const Context& ctx, const Tensor& narrow) { return widened(ctx, {narrow, 0}, narrow.dim(1)); }

/// Rounds `wide` and writes it to the columns of `narrow`.
void round_to(const Context& ctx, const Tensor& wide, const Columns& narrow) {
  dispatch_narrow(narrow.matrix.dtype(), [&]<class T>(T) {
    for_rows<T>(ctx, narrow, wide, [kernel = typed_kernels<float>(ctx).to<T>()](T* to, const float* from, int64_t n) { kernel({from, to}, 0, n); });
  });
}

/// Calls body(first, count) for blocks of the F outputs of a layer, sized so that weights [count,D] and activations [M,count] in fp32 fit the caches.
/// Without blocks, the fp32 copies for the output head would take more memory than the rest of a step.
template <class Body>
void for_output_blocks(int64_t rows, int64_t inputs, int64_t outputs, const Body& body) {
  constexpr int64_t kElements = 1 << 20, kFewest = 64;
  const int64_t block = std::max(kFewest, kElements / (rows + inputs) / kFewest * kFewest);
  for (int64_t first = 0; first < outputs; first += block) body(first, std::min(block, outputs - first));
}

void widened_forward(const Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y) {
  const Tensor wide_x = widened(ctx, x);
  for_output_blocks(x.dim(0), x.dim(1), w.dim(0), [&](int64_t first, int64_t count) {
    const Tensor wide_y = scratch(ctx, x.dim(0), count);
    f32_gemm(ctx, {wide_x}, {widened(ctx, w.rows(first, count)), true}, false, wide_y);
    round_to(ctx, wide_y, {y, first});
  });
}

void widened_backward_input(const Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  const Tensor wide_dx = scratch(ctx, dx.dim(0), dx.dim(1));
  for_output_blocks(dx.dim(0), dx.dim(1), w.dim(0), [&](int64_t first, int64_t count) {
    f32_gemm(ctx, {widened(ctx, {dy, first}, count)}, {widened(ctx, w.rows(first, count))}, first > 0, wide_dx);
  });
  round_to(ctx, wide_dx, {dx, 0});
}

void widened_backward_weight(const Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add) {
  const Tensor wide_x = widened(ctx, x);
  for_output_blocks(x.dim(0), x.dim(1), dw.dim(0), [&](int64_t first, int64_t count) {
    f32_gemm(ctx, {widened(ctx, {dy, first}, count), true}, {wide_x}, add, dw.rows(first, count));
  });
}

/// Selects the matrix product for `dtype`; bf16() returns whether it ran. Below kAvx512Bf16 oneDNN would emulate bf16, which is slower than
/// conversion to fp32.
template <class F32, class BF16, class Widened>
void multiply(const Context& ctx, DType dtype, const F32& f32, const BF16& bf16, const Widened& widened_product) {
  if (dtype == DType::kF32) return f32();
  if (dtype == DType::kBF16 && ctx.isa >= Isa::kAvx512Bf16 && bf16()) return;
  widened_product();
}

/// c := 0: the product over an inner dimension of size 0.
void clear(const Tensor& c) { std::memset(c.raw(), 0, static_cast<size_t>(c.bytes())); }

}  // namespace

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  if (y.numel() == 0) return;
  bool with_bias = false;
  if (x.numel() == 0) {
    clear(y);
  } else {
    multiply(
        ctx, x.dtype(),
        [&] {
          f32_gemm(ctx, {x}, {w, true}, false, y);
        },
        [&] {
          return with_bias = bf16_gemm(ctx, {x}, {w, true}, bias, false, y);
        },
        [&] { widened_forward(ctx, x, w, y); });
  }
  if (bias.defined() && !with_bias) bias_forward(ctx, bias, y);
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) return clear(dx);
  multiply(
      ctx, dy.dtype(), [&] { f32_gemm(ctx, {dy}, {w}, false, dx); }, [&] { return bf16_gemm(ctx, {dy}, {w}, {}, false, dx); },
      [&] { widened_backward_input(ctx, dy, w, dx); });
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add) {
  if (dw.numel() == 0) return;
  if (dy.dim(0) == 0) {
    if (!add) clear(dw);
    return;
  }
  multiply(
      ctx, dy.dtype(),
      [&] {
        f32_gemm(ctx, {dy, true}, {x}, add, dw);
      },
      [&] {
        return bf16_gemm(ctx, {dy, true}, {x}, {}, add, dw);
      },
      [&] { widened_backward_weight(ctx, dy, x, dw, add); });
}

void limit_library(Isa isa) {
  if (isa == best_isa()) return;
  const dnnl_cpu_isa_t limit = isa == Isa::kPortable ? dnnl_cpu_isa_sse41
                               : isa == Isa::kAvx2   ? dnnl_cpu_isa_avx2
                               : isa == Isa::kAvx512 ? dnnl_cpu_isa_avx512_core
                                                     : dnnl_cpu_isa_avx512_core_bf16;
  if (dnnl_set_max_cpu_isa(limit) == dnnl_success) return;
  TRIREME_CHECK(dnnl_get_effective_cpu_isa() == limit, "oneDNN is already in use and cannot be limited to ", name_of(isa));
}

std::string gemm_library() {
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

}  // namespace trireme::cpu
