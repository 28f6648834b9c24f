#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace trireme::reference {

/// y = x * rstd * (w + offset), rstd = 1 / sqrt(mean(x^2) + epsilon)
template <class T>
void rmsnorm_forward(const T* x, const T* w, double offset, double epsilon, T* y, Accumulator<T>* rstd, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, x += columns, y += columns) {
    double sum_squares = 0;
    for (int64_t d = 0; d < columns; ++d) sum_squares += static_cast<double>(x[d]) * x[d];
    const double r = 1 / std::sqrt(sum_squares / static_cast<double>(columns) + epsilon);
    for (int64_t d = 0; d < columns; ++d) y[d] = static_cast<T>(x[d] * r * (w[d] + offset));
    rstd[m] = static_cast<Accumulator<T>>(r);
  }
}

/// With g = dy * (w + offset):   dx = rstd * (g - x * rstd^2 * mean(g*x))
template <class T>
void rmsnorm_backward_input(const T* dy, const T* x, const T* w, double offset, const Accumulator<T>* rstd, T* dx, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, dy += columns, x += columns, dx += columns) {
    const double r = rstd[m];
    double sum = 0;
    for (int64_t d = 0; d < columns; ++d) sum += dy[d] * (w[d] + offset) * x[d];
    const double mean = sum / static_cast<double>(columns);
    for (int64_t d = 0; d < columns; ++d) dx[d] = static_cast<T>(r * (dy[d] * (w[d] + offset) - x[d] * r * r * mean));
  }
}

/// dw[d] += sum_m dy[m,d] x[m,d] rstd[m]
template <class T, class Gradient>
void rmsnorm_backward_weight(const T* dy, const T* x, const Accumulator<T>* rstd, Gradient* dw, int64_t rows, int64_t columns) {
  for (int64_t d = 0; d < columns; ++d) {
    double sum = 0;
    for (int64_t m = 0; m < rows; ++m) sum += static_cast<double>(dy[m * columns + d]) * x[m * columns + d] * rstd[m];
    dw[d] = static_cast<Gradient>(dw[d] + sum);
  }
}

/// y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(var + epsilon)
template <class T>
void layernorm_forward(const T* x, const T* w, const T* b, double epsilon, T* y, Accumulator<T>* mean, Accumulator<T>* rstd, int64_t rows,
                       int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, x += columns, y += columns) {
    double sum = 0;
    for (int64_t d = 0; d < columns; ++d) sum += x[d];
    const double mu = sum / static_cast<double>(columns);
    double sum_squares = 0;
    for (int64_t d = 0; d < columns; ++d) sum_squares += (x[d] - mu) * (x[d] - mu);
    const double r = 1 / std::sqrt(sum_squares / static_cast<double>(columns) + epsilon);
    for (int64_t d = 0; d < columns; ++d) y[d] = static_cast<T>((x[d] - mu) * r * w[d] + b[d]);
    mean[m] = static_cast<Accumulator<T>>(mu);
    rstd[m] = static_cast<Accumulator<T>>(r);
  }
}

/// With n = (x - mean) * rstd and g = dy*w:   dx = rstd * (g - mean(g) - n * mean(g*n))
template <class T>
void layernorm_backward_input(const T* dy, const T* x, const T* w, const Accumulator<T>* mean, const Accumulator<T>* rstd, T* dx, int64_t rows,
                              int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, dy += columns, x += columns, dx += columns) {
    const double mu = mean[m], r = rstd[m];
    double sum_g = 0, sum_gn = 0;
    for (int64_t d = 0; d < columns; ++d) {
      const double g = static_cast<double>(dy[d]) * w[d];
      sum_g += g;
      sum_gn += g * (x[d] - mu) * r;
    }
    const double mean_g = sum_g / static_cast<double>(columns), mean_gn = sum_gn / static_cast<double>(columns);
    for (int64_t d = 0; d < columns; ++d) {
      dx[d] = static_cast<T>(r * (static_cast<double>(dy[d]) * w[d] - mean_g - (x[d] - mu) * r * mean_gn));
    }
  }
}

/// dw[d] += sum_m dy[m,d] (x[m,d] - mean[m]) rstd[m];   db[d] += sum_m dy[m,d]
template <class T, class Gradient>
void layernorm_backward_weight(const T* dy, const T* x, const Accumulator<T>* mean, const Accumulator<T>* rstd, Gradient* dw, Gradient* db,
                               int64_t rows, int64_t columns) {
  for (int64_t d = 0; d < columns; ++d) {
    double sum_w = 0, sum_b = 0;
    for (int64_t m = 0; m < rows; ++m) {
      const double g = dy[m * columns + d];
      sum_w += g * (static_cast<double>(x[m * columns + d]) - mean[m]) * rstd[m];
      sum_b += g;
    }
    dw[d] = static_cast<Gradient>(dw[d] + sum_w);
    db[d] = static_cast<Gradient>(db[d] + sum_b);
  }
}

}  // namespace trireme::reference
