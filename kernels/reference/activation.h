#pragma once
#include <cmath>
#include <cstdint>
#include <numbers>

namespace trireme::reference {

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// y = silu(gate) * up,   silu(g) = g sigmoid(g)
template <class T>
void swiglu_forward(const T* gate_up, T* y, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, gate_up += 2 * columns, y += columns) {
    for (int64_t f = 0; f < columns; ++f) {
      const double gate = gate_up[f], up = gate_up[columns + f];
      y[f] = static_cast<T>(gate * sigmoid(gate) * up);
    }
  }
}

/// silu'(g) = sigmoid(g) (1 + g (1 - sigmoid(g)))
template <class T>
void swiglu_backward(const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, dy += columns, gate_up += 2 * columns, dgate_up += 2 * columns) {
    for (int64_t f = 0; f < columns; ++f) {
      const double gate = gate_up[f], up = gate_up[columns + f], s = sigmoid(gate);
      dgate_up[f] = static_cast<T>(dy[f] * up * s * (1 + gate * (1 - s)));
      dgate_up[columns + f] = static_cast<T>(dy[f] * gate * s);
    }
  }
}

constexpr double kGeluScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

/// y = x/2 (1 + tanh(u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
template <class T>
void gelu_forward(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = x[i];
    y[i] = static_cast<T>(0.5 * v * (1 + std::tanh(kGeluScale * (v + kGeluCubic * v * v * v))));
  }
}

/// dy/dx = (1 + tanh u)/2 + x/2 (1 - tanh^2 u) u'
template <class T>
void gelu_backward(const T* dy, const T* x, T* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = x[i];
    const double t = std::tanh(kGeluScale * (v + kGeluCubic * v * v * v));
    const double slope = kGeluScale * (1 + 3 * kGeluCubic * v * v);
    dx[i] = static_cast<T>(dy[i] * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope));
  }
}

/// y = x Phi(x),   Phi(x) = erfc(-x / sqrt(2)) / 2
template <class T>
void gelu_erf_forward(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = x[i];
    y[i] = static_cast<T>(0.5 * v * std::erfc(-v / std::numbers::sqrt2));
  }
}

/// dy/dx = Phi(x) + x exp(-x^2/2) / sqrt(2 pi)
template <class T>
void gelu_erf_backward(const T* dy, const T* x, T* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = x[i], density = std::exp(-0.5 * v * v) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    dx[i] = static_cast<T>(dy[i] * (0.5 * std::erfc(-v / std::numbers::sqrt2) + v * density));
  }
}

}  // namespace trireme::reference
