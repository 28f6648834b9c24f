#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/math.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

constexpr float kLog2E = 1.44269504088896341F;

template <class T>
void swiglu_row(const T* gate, const T* up, int64_t columns, T* y) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    y[f] = rounded<T>(g * sigmoid2(kLog2E * g) * static_cast<float>(up[f]));
  }
}

template <class T>
void swiglu_backward_row(const T* dy, const T* gate, const T* up, int64_t columns, T* dgate, T* dup) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    const float d = static_cast<float>(dy[f]);
    const float s = sigmoid2(kLog2E * g);
    dgate[f] = rounded<T>(d * static_cast<float>(up[f]) * s * (1.0F + g * (1.0F - s)));
    dup[f] = rounded<T>(d * g * s);
  }
}

// GELU(x) = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh(u)) / 2 = sigmoid(2u), no tanh is needed and nothing cancels
// for negative x.
constexpr float kScale = 1.59576912160573071F;  // 2 sqrt(2/pi): 2u = kScale (x + kCubic x^3)
constexpr float kCubic = 0.044715F;

/// sigmoid(2u) for x, with square = x^2.
float gate_of(float x, float square) { return sigmoid2(x * (kLog2E * kScale + kLog2E * kScale * kCubic * square)); }

template <class T>
void gelu(const T* x, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float v = static_cast<float>(x[i]);
    y[i] = rounded<T>(v * gate_of(v, v * v));
  }
}

template <class T>
void gelu_slope(const T* dy, const T* x, int64_t count, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float v = static_cast<float>(x[i]);
    const float square = v * v;
    const float s = gate_of(v, square);
    const float slope = kScale + 3.0F * kScale * kCubic * square;
    const float bend = v * s * (1.0F - s);
    dx[i] = rounded<T>(static_cast<float>(dy[i]) * (bend == 0.0F ? s : s + bend * slope));  // where x^2 overflows, `bend` is already 0
  }
}

template <class T>
void gelu_erf(const T* x, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float v = static_cast<float>(x[i]);
    y[i] = rounded<T>(v * normal_cdf(v, simd_exp(-0.5F * v * v)));
  }
}

template <class T>
void gelu_erf_slope(const T* dy, const T* x, int64_t count, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float v = static_cast<float>(x[i]);
    const float gauss = simd_exp(-0.5F * v * v);
    dx[i] = rounded<T>(static_cast<float>(dy[i]) * (normal_cdf(v, gauss) + kGaussAtZero * v * gauss));
  }
}

template <class T>
void geglu_row(const T* gate, const T* up, int64_t columns, T* y) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    y[f] = rounded<T>(g * gate_of(g, g * g) * static_cast<float>(up[f]));
  }
}

template <class T>
void geglu_backward_row(const T* dy, const T* gate, const T* up, int64_t columns, T* dgate, T* dup) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    const float d = static_cast<float>(dy[f]);
    const float square = g * g;
    const float s = gate_of(g, square);
    const float bend = g * s * (1.0F - s);
    const float slope = bend == 0.0F ? s : s + bend * (kScale + 3.0F * kScale * kCubic * square);  // as in gelu_slope
    dgate[f] = rounded<T>(d * static_cast<float>(up[f]) * slope);
    dup[f] = rounded<T>(d * g * s);
  }
}

template <class T>
void geglu_erf_row(const T* gate, const T* up, int64_t columns, T* y) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    y[f] = rounded<T>(g * normal_cdf(g, simd_exp(-0.5F * g * g)) * static_cast<float>(up[f]));
  }
}

template <class T>
void geglu_erf_backward_row(const T* dy, const T* gate, const T* up, int64_t columns, T* dgate, T* dup) {
#pragma omp simd
  for (int64_t f = 0; f < columns; ++f) {
    const float g = static_cast<float>(gate[f]);
    const float d = static_cast<float>(dy[f]);
    const float gauss = simd_exp(-0.5F * g * g);
    const float below = normal_cdf(g, gauss);
    dgate[f] = rounded<T>(d * static_cast<float>(up[f]) * (below + kGaussAtZero * g * gauss));
    dup[f] = rounded<T>(d * g * below);
  }
}

template <class T, class Row>
void gated_rows(const GatedForward<T>& p, int64_t begin, int64_t end, const Row& row) {
  for (int64_t m = begin; m < end; ++m) {
    const T* const gate = p.gate_up + 2 * m * p.columns;
    row(gate, gate + p.columns, p.columns, p.y + m * p.columns);
  }
}

template <class T, class Row>
void gated_backward_rows(const GatedBackward<T>& p, int64_t begin, int64_t end, const Row& row) {
  for (int64_t m = begin; m < end; ++m) {
    const T* const gate = p.gate_up + 2 * m * p.columns;
    T* const dgate = p.dgate_up + 2 * m * p.columns;
    row(p.dy + m * p.columns, gate, gate + p.columns, p.columns, dgate, dgate + p.columns);
  }
}

}  // namespace

template <class T>
void swiglu_forward(const GatedForward<T>& p, int64_t begin, int64_t end) {
  gated_rows(p, begin, end, swiglu_row<T>);
}

template <class T>
void swiglu_backward(const GatedBackward<T>& p, int64_t begin, int64_t end) {
  gated_backward_rows(p, begin, end, swiglu_backward_row<T>);
}

template <class T>
void geglu_forward(const GatedForward<T>& p, int64_t begin, int64_t end) {
  gated_rows(p, begin, end, geglu_row<T>);
}

template <class T>
void geglu_backward(const GatedBackward<T>& p, int64_t begin, int64_t end) {
  gated_backward_rows(p, begin, end, geglu_backward_row<T>);
}

template <class T>
void geglu_erf_forward(const GatedForward<T>& p, int64_t begin, int64_t end) {
  gated_rows(p, begin, end, geglu_erf_row<T>);
}

template <class T>
void geglu_erf_backward(const GatedBackward<T>& p, int64_t begin, int64_t end) {
  gated_backward_rows(p, begin, end, geglu_erf_backward_row<T>);
}

template <class T>
void gelu_forward(const GeluForward<T>& p, int64_t begin, int64_t end) {
  gelu(p.x + begin, end - begin, p.y + begin);
}

template <class T>
void gelu_backward(const GeluBackward<T>& p, int64_t begin, int64_t end) {
  gelu_slope(p.dy + begin, p.x + begin, end - begin, p.dx + begin);
}

template <class T>
void gelu_erf_forward(const GeluForward<T>& p, int64_t begin, int64_t end) {
  gelu_erf(p.x + begin, end - begin, p.y + begin);
}

template <class T>
void gelu_erf_backward(const GeluBackward<T>& p, int64_t begin, int64_t end) {
  gelu_erf_slope(p.dy + begin, p.x + begin, end - begin, p.dx + begin);
}

TRIREME_INSTANCES(swiglu_forward, GatedForward);
TRIREME_INSTANCES(swiglu_backward, GatedBackward);
TRIREME_INSTANCES(geglu_forward, GatedForward);
TRIREME_INSTANCES(geglu_backward, GatedBackward);
TRIREME_INSTANCES(geglu_erf_forward, GatedForward);
TRIREME_INSTANCES(geglu_erf_backward, GatedBackward);
TRIREME_INSTANCES(gelu_forward, GeluForward);
TRIREME_INSTANCES(gelu_backward, GeluBackward);
TRIREME_INSTANCES(gelu_erf_forward, GeluForward);
TRIREME_INSTANCES(gelu_erf_backward, GeluBackward);

}  // namespace trireme::cpu::TRIREME_ISA
