#include "kernels/cpu/isa/column_sums.h"
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/math.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

// Functions of one row take plain pointers, because loops over members of a struct do not reliably vectorise. Sums over a row are in double: a scalar
// fp32 sum of 16 thousand terms would add more error than the rest of the kernel.
float mean_of(double sum, int64_t columns) { return static_cast<float>(sum / static_cast<double>(columns)); }

/// dx = gradient(column) + residual (null: none).
template <class T, class Gradient>
inline void store_row(const T* residual, int64_t columns, T* dx, const Gradient& gradient) {
  if (residual == nullptr) {
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) dx[d] = rounded<T>(gradient(d));
  } else {
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) dx[d] = rounded<T>(gradient(d) + static_cast<float>(residual[d]));
  }
}

struct RowStatistics {
  float mean, rstd;
};

template <class T>
RowStatistics rmsnorm_row(const T* x, const T* w, float offset, int64_t columns, float epsilon, T* y) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < columns; ++d) squares += static_cast<float>(x[d]) * static_cast<float>(x[d]);
  const float rstd = 1.0F / root(mean_of(squares, columns) + epsilon);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) y[d] = rounded<T>(static_cast<float>(x[d]) * rstd * (static_cast<float>(w[d]) + offset));
  return {0, rstd};
}

template <class T>
RowStatistics layernorm_row(const T* x, const T* w, const T* b, int64_t columns, float epsilon, T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < columns; ++d) sum += static_cast<float>(x[d]);
  const float mean = mean_of(sum, columns);
  double squares = 0;  // of the centered values: mean(x^2) - mean^2 would cancel
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < columns; ++d) squares += (static_cast<float>(x[d]) - mean) * (static_cast<float>(x[d]) - mean);
  const float rstd = 1.0F / root(mean_of(squares, columns) + epsilon);
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d)
    y[d] = rounded<T>((static_cast<float>(x[d]) - mean) * rstd * static_cast<float>(w[d]) + static_cast<float>(b[d]));
  return {mean, rstd};
}

template <class T>
void rmsnorm_backward_row(const T* dy, const T* x, const T* w, float offset, const T* residual, int64_t columns, float rstd, T* dx) {
  double dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < columns; ++d) dot += static_cast<float>(dy[d]) * (static_cast<float>(w[d]) + offset) * static_cast<float>(x[d]);
  const float along_x = rstd * rstd * mean_of(dot, columns);
  const auto gradient = [=](int64_t d) {
    return rstd * (static_cast<float>(dy[d]) * (static_cast<float>(w[d]) + offset) - static_cast<float>(x[d]) * along_x);
  };
  store_row(residual, columns, dx, gradient);
}

/// dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * w and x_hat = (x - mean) * rstd.
template <class T>
void layernorm_backward_row(const T* dy, const T* x, const T* w, const T* residual, int64_t columns, RowStatistics row, T* dx) {
  const float mean = row.mean;
  double sum = 0;
  double dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t d = 0; d < columns; ++d) {
    const float g = static_cast<float>(dy[d]) * static_cast<float>(w[d]);
    sum += g;
    dot += g * (static_cast<float>(x[d]) - mean);
  }
  const float rstd = row.rstd;
  const float average = mean_of(sum, columns);
  const float along_x = rstd * rstd * mean_of(dot, columns);
  const auto gradient = [=](int64_t d) {
    return rstd * (static_cast<float>(dy[d]) * static_cast<float>(w[d]) - average - (static_cast<float>(x[d]) - mean) * along_x);
  };
  store_row(residual, columns, dx, gradient);
}

}  // namespace

template <class T>
void norm_forward(const NormForward<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const int64_t first = m * p.columns;
    const T* x = p.x + first;
    if (p.addend != nullptr) {
      add_range(x, p.addend + first, p.columns, p.sum + first);
      x = p.sum + first;
    }
    const RowStatistics row = p.b == nullptr ? rmsnorm_row(x, p.w, p.offset, p.columns, p.epsilon, p.y + first)
                                             : layernorm_row(x, p.w, p.b, p.columns, p.epsilon, p.y + first);
    if (p.mean != nullptr) p.mean[m] = row.mean;
    p.rstd[m] = row.rstd;
  }
}

template <class T>
void norm_backward_input(const NormBackwardInput<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const int64_t first = m * p.columns;
    const T* const residual = p.residual == nullptr ? nullptr : p.residual + first;
    if (p.mean == nullptr) {
      rmsnorm_backward_row(p.dy + first, p.x + first, p.w, p.offset, residual, p.columns, p.rstd[m], p.dx + first);
    } else {
      layernorm_backward_row(p.dy + first, p.x + first, p.w, residual, p.columns, {p.mean[m], p.rstd[m]}, p.dx + first);
    }
  }
}

template <class T>
void norm_backward_weight(const NormBackwardWeight<T>& p, int64_t begin, int64_t end) {
  const int64_t columns = p.columns;
  const T *const dy = p.dy, *const x = p.x;
  const float *const mean = p.mean, *const rstd = p.rstd;
  add_column_sums(p.rows, begin, end, p.dw, [=](int64_t m, int64_t d) {
    const float centered = mean == nullptr ? static_cast<float>(x[m * columns + d]) : static_cast<float>(x[m * columns + d]) - mean[m];
    return static_cast<float>(dy[m * columns + d]) * centered * rstd[m];
  });
  if (p.db != nullptr) add_column_sums(p.rows, begin, end, p.db, [=](int64_t m, int64_t d) { return static_cast<float>(dy[m * columns + d]); });
}

TRIREME_INSTANCES(norm_forward, NormForward);
TRIREME_INSTANCES(norm_backward_input, NormBackwardInput);
TRIREME_INSTANCES(norm_backward_weight, NormBackwardWeight);

}  // namespace trireme::cpu::TRIREME_ISA
