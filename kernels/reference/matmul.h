#pragma once
// The matrix products of a linear layer, summed in double. The inner loops run along a row of sums.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme::reference {

/// y[m,f] = sum_d x[m,d] w[f,d]
template <class T>
void linear_forward(const T* x, const T* w, T* y, int64_t rows, int64_t inputs, int64_t outputs) {
  std::vector<double> sums(static_cast<size_t>(outputs));
  for (int64_t m = 0; m < rows; ++m) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t d = 0; d < inputs; ++d) {
      const double x_md = x[m * inputs + d];
      for (int64_t f = 0; f < outputs; ++f) sums[f] += x_md * w[f * inputs + d];
    }
    for (int64_t f = 0; f < outputs; ++f) y[m * outputs + f] = static_cast<T>(sums[f]);
  }
}

/// dx[m,d] = sum_f dy[m,f] w[f,d]
template <class T>
void linear_backward_input(const T* dy, const T* w, T* dx, int64_t rows, int64_t inputs, int64_t outputs) {
  std::vector<double> sums(static_cast<size_t>(inputs));
  for (int64_t m = 0; m < rows; ++m) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t f = 0; f < outputs; ++f) {
      const double dy_mf = dy[m * outputs + f];
      for (int64_t d = 0; d < inputs; ++d) sums[d] += dy_mf * w[f * inputs + d];
    }
    for (int64_t d = 0; d < inputs; ++d) dx[m * inputs + d] = static_cast<T>(sums[d]);
  }
}

/// dw[f,d] = sum_m dy[m,f] x[m,d], added to dw[f,d] if `add`
template <class T, class Gradient>
void linear_backward_weight(const T* dy, const T* x, Gradient* dw, int64_t rows, int64_t inputs, int64_t outputs, bool add) {
  std::vector<double> sums(static_cast<size_t>(inputs));
  for (int64_t f = 0; f < outputs; ++f) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t m = 0; m < rows; ++m) {
      const double dy_mf = dy[m * outputs + f];
      for (int64_t d = 0; d < inputs; ++d) sums[d] += dy_mf * x[m * inputs + d];
    }
    for (int64_t d = 0; d < inputs; ++d) dw[f * inputs + d] = static_cast<Gradient>(add ? dw[f * inputs + d] + sums[d] : sums[d]);
  }
}

template <class T>
void bias_forward(const T* bias, T* y, int64_t rows, int64_t outputs) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t f = 0; f < outputs; ++f) y[m * outputs + f] = static_cast<T>(y[m * outputs + f] + bias[f]);
  }
}

/// dbias[f] += sum_m dy[m,f]
template <class T, class Gradient>
void bias_backward(const T* dy, Gradient* dbias, int64_t rows, int64_t outputs) {
  for (int64_t f = 0; f < outputs; ++f) {
    double sum = 0;
    for (int64_t m = 0; m < rows; ++m) sum += dy[m * outputs + f];
    dbias[f] = static_cast<Gradient>(dbias[f] + sum);
  }
}

}  // namespace trireme::reference
