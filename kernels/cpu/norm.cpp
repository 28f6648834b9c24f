#include "kernels/cpu/norm.h"

#include <cmath>

#include "kernels/cpu/parallel.h"

namespace trireme::cpu {
namespace {

// One row each, as functions of plain pointers: loops over variables captured by a lambda do not reliably vectorise.

/// Sums over a row are in double: in fp32 those of 16 thousand terms lose more than the rest of the kernel together, where they are not vectorised.
float mean_of(double sum, int64_t columns) { return static_cast<float>(sum / static_cast<double>(columns)); }

/// Returns rstd.
float rmsnorm_row(const float* x, const float* w, int64_t columns, float epsilon, float* y) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < columns; ++d) squares += x[d] * x[d];
  const float rstd = 1.0f / std::sqrt(mean_of(squares, columns) + epsilon);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) y[d] = x[d] * rstd * w[d];
  return rstd;
}

void rmsnorm_backward_row(const float* dy, const float* x, const float* w, int64_t columns, float rstd, float* dx) {
  double dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < columns; ++d) dot += dy[d] * w[d] * x[d];
  const float along_x = rstd * rstd * mean_of(dot, columns);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) dx[d] = rstd * (dy[d] * w[d] - x[d] * along_x);
}

struct RowStatistics {
  float mean, rstd;
};

RowStatistics layernorm_row(const float* x, const float* w, const float* b, int64_t columns, float epsilon, float* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < columns; ++d) sum += x[d];
  const float mean = mean_of(sum, columns);
  double squares = 0;  // of the centered values: mean(x^2) - mean^2 would cancel
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < columns; ++d) squares += (x[d] - mean) * (x[d] - mean);
  const float rstd = 1.0f / std::sqrt(mean_of(squares, columns) + epsilon);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) y[d] = (x[d] - mean) * rstd * w[d] + b[d];
  return {mean, rstd};
}

/// dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * w and x_hat = (x - mean) * rstd.
void layernorm_backward_row(const float* dy, const float* x, const float* w, int64_t columns, RowStatistics row, float* dx) {
  const float mean = row.mean;
  double sum = 0;
  double dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t d = 0; d < columns; ++d) {
    sum += dy[d] * w[d];
    dot += dy[d] * w[d] * (x[d] - mean);
  }
  const float rstd = row.rstd;
  const float average = mean_of(sum, columns);
  const float along_x = rstd * rstd * mean_of(dot, columns);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) dx[d] = rstd * (dy[d] * w[d] - average - (x[d] - mean) * along_x);
}

/// body(m) for every row of an [M,D] tensor.
template <class Body>
void for_rows(const Context& ctx, const Tensor& x, const Body& body) {
  parallel_for(ctx, x.dim(0), grain_of(x.dim(1)), [body](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) body(m);
  });
}

}  // namespace

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  const int64_t columns = x.dim(1);
  const float eps = static_cast<float>(epsilon);
  const float* const in = x.data<float>();
  const float* const weight = w.data<float>();
  float* const out = y.data<float>();
  float* const scales = rstd.data<float>();
  for_rows(ctx, x, [=](int64_t m) { scales[m] = rmsnorm_row(in + m * columns, weight, columns, eps, out + m * columns); });
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dx) {
  const int64_t columns = x.dim(1);
  const float* const gradient = dy.data<float>();
  const float* const in = x.data<float>();
  const float* const weight = w.data<float>();
  const float* const scales = rstd.data<float>();
  float* const out = dx.data<float>();
  for_rows(ctx, x, [=](int64_t m) { rmsnorm_backward_row(gradient + m * columns, in + m * columns, weight, columns, scales[m], out + m * columns); });
}

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  const int64_t columns = x.dim(1);
  const float* const gradient = dy.data<float>();
  const float* const in = x.data<float>();
  const float* const scales = rstd.data<float>();
  const auto term = [=](int64_t m, int64_t d) { return gradient[m * columns + d] * in[m * columns + d] * scales[m]; };
  add_column_sums(ctx, x.dim(0), columns, dw.data<float>(), term);
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  const int64_t columns = x.dim(1);
  const float eps = static_cast<float>(epsilon);
  const float* const in = x.data<float>();
  const float* const weight = w.data<float>();
  const float* const bias = b.data<float>();
  float* const out = y.data<float>();
  float* const means = mean.data<float>();
  float* const scales = rstd.data<float>();
  for_rows(ctx, x, [=](int64_t m) {
    const RowStatistics row = layernorm_row(in + m * columns, weight, bias, columns, eps, out + m * columns);
    means[m] = row.mean;
    scales[m] = row.rstd;
  });
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& dx) {
  const int64_t columns = x.dim(1);
  const float* const gradient = dy.data<float>();
  const float* const in = x.data<float>();
  const float* const weight = w.data<float>();
  const float* const means = mean.data<float>();
  const float* const scales = rstd.data<float>();
  float* const out = dx.data<float>();
  for_rows(ctx, x, [=](int64_t m) {
    layernorm_backward_row(gradient + m * columns, in + m * columns, weight, columns, {means[m], scales[m]}, out + m * columns);
  });
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  const int64_t columns = x.dim(1);
  const float* const gradient = dy.data<float>();
  const float* const in = x.data<float>();
  const float* const means = mean.data<float>();
  const float* const scales = rstd.data<float>();
  const auto weight_term = [=](int64_t m, int64_t d) { return gradient[m * columns + d] * (in[m * columns + d] - means[m]) * scales[m]; };
  add_column_sums(ctx, x.dim(0), columns, dw.data<float>(), weight_term);
  add_column_sums(ctx, x.dim(0), columns, db.data<float>(), [=](int64_t m, int64_t d) { return gradient[m * columns + d]; });
}

}  // namespace trireme::cpu
