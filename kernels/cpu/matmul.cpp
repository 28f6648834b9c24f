#include "kernels/cpu/matmul.h"

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/bf16_gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/team_size.h"

namespace trireme::cpu {
namespace {

/// c [m,n] = a [m,k] b [k,n] + beta c, all row-major.
void gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, int64_t m, int64_t n, int64_t k, float beta, const Tensor& c) {
  if (a.matrix.dtype() == DType::kBF16) return bf16_gemm(ctx, a, b, m, n, k, beta == 1.0f, c);
  if (m == 0 || n == 0 || (k == 0 && beta == 1.0f)) return;
  const TeamSize team(ctx.threads);
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.matrix.data<float>(), a.stride(),
                                          b.matrix.data<float>(), b.stride(), beta, c.data<float>(), n);
  TRIREME_CHECK(status == dnnl_success, "dnnl_sgemm returned ", static_cast<int>(status));
}

}  // namespace

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y) {
  gemm(ctx, {x, false}, {w, true}, x.dim(0), w.dim(0), x.dim(1), 0.0f, y);
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  gemm(ctx, {dy, false}, {w, false}, dy.dim(0), w.dim(1), w.dim(0), 0.0f, dx);
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw) {
  gemm(ctx, {dy, true}, {x, false}, dy.dim(1), x.dim(1), dy.dim(0), 1.0f, dw);
}

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y) {
  const int64_t columns = y.dim(1);
  const float* const b = bias.data<float>();
  float* const out = y.data<float>();
  parallel_for(ctx, y.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      float* const row = out + m * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) row[c] += b[c];
    }
  });
}

void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias) {
  const int64_t columns = dy.dim(1);
  const float* const gradient = dy.data<float>();
  add_column_sums(ctx, dy.dim(0), columns, dbias.data<float>(), [=](int64_t m, int64_t c) { return gradient[m * columns + c]; });
}

std::string gemm_library() {
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

}  // namespace trireme::cpu
