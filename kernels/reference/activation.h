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

/// A function at one argument.
struct ValueAndSlope {
  double value, slope;
};

/// value = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3);   slope = (1 + tanh u)/2 + x/2 (1 - tanh^2 u) u'
inline ValueAndSlope gelu_tanh(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  const double slope = kGeluScale * (1 + 3 * kGeluCubic * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope};
}

/// value = x Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2;   slope = Phi(x) + x exp(-x^2/2) / sqrt(2 pi)
inline ValueAndSlope gelu_erf(double x) {
  const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
  const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return {x * below, below + x * density};
}

template <class T>
void gelu_forward(ValueAndSlope (*gelu)(double), const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(gelu(x[i]).value);
}

template <class T>
void gelu_backward(ValueAndSlope (*gelu)(double), const T* dy, const T* x, T* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = static_cast<T>(dy[i] * gelu(x[i]).slope);
}

/// y = GELU(gate) * up
template <class T>
void geglu_forward(ValueAndSlope (*gelu)(double), const T* gate_up, T* y, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, gate_up += 2 * columns, y += columns)
    for (int64_t f = 0; f < columns; ++f) y[f] = static_cast<T>(gelu(gate_up[f]).value * gate_up[columns + f]);
}

template <class T>
void geglu_backward(ValueAndSlope (*gelu)(double), const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m, dy += columns, gate_up += 2 * columns, dgate_up += 2 * columns) {
    for (int64_t f = 0; f < columns; ++f) {
      const auto [value, slope] = gelu(gate_up[f]);
      const double up = gate_up[columns + f];
      dgate_up[f] = static_cast<T>(dy[f] * up * slope);
      dgate_up[columns + f] = static_cast<T>(dy[f] * value);
    }
  }
}

}  // namespace trireme::reference
