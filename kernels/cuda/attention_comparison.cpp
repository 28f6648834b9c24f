#include "kernels/cuda/attention_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"

namespace trireme::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Not finite alike: both NaN, or the same infinity.
bool alike(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

/// Sums over the elements of one head of one token.
struct Head {
  double error = 0, square = 0;        ///< squared norms of the difference and of b
  bool finite = true, matches = true;  ///< matches: what is not finite is so in both
};
template <class T>
Head compare(const T* a, const T* b, int64_t count) {
  Head head;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(static_cast<float>(a[i])), y = static_cast<double>(static_cast<float>(b[i]));
    if (!std::isfinite(x) || !std::isfinite(y)) {
      head.finite = false;
      head.matches = head.matches && alike(x, y);
      continue;
    }
    head.error += (x - y) * (x - y);
    head.square += y * y;
  }
  return head;
}

template <class T>
double difference(const T* a, const T* b, const AttentionTolerance& tolerance, int64_t rows, int64_t stride, int64_t first, int64_t columns,
                  int64_t head_size) {
  const auto each = [&](const auto& visit) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = first; column < first + columns; column += head_size)
        visit(compare(a + row * stride + column, b + row * stride + column, head_size));
  };
  double errors = 0, squares = 0;
  int64_t finite = 0;
  bool agree = true;
  each([&](const Head& head) {
    agree = agree && head.matches;
    if (!head.finite) return;
    errors += head.error;
    squares += head.square;
    ++finite;
  });
  if (!agree) return kInfinity;
  if (errors == 0) return 0;
  if (squares == 0) return kInfinity;
  const double typical = std::sqrt(squares / static_cast<double>(finite));
  double worst = std::sqrt(errors / squares) / tolerance.mean;
  each([&](const Head& head) {
    if (head.finite) worst = std::max(worst, std::sqrt(head.error) / (std::sqrt(head.square) + typical) / tolerance.row);
  });
  return worst;
}

}  // namespace

double rows_difference(const void* a, const void* b, DType dtype, int64_t rows, int64_t stride, int64_t first, int64_t columns, int64_t head_size) {
  const AttentionTolerance tolerance = attention_tolerance(dtype);
  if (dtype == DType::kF16)
    return difference(static_cast<const float16*>(a), static_cast<const float16*>(b), tolerance, rows, stride, first, columns, head_size);
  return difference(static_cast<const bfloat16*>(a), static_cast<const bfloat16*>(b), tolerance, rows, stride, first, columns, head_size);
}

double lse_difference(const float* a, const float* b, int64_t count) {
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (std::isfinite(x) && std::isfinite(y)) {
      worst = std::max(worst, std::abs(x - y) / std::max(1.0, std::abs(y)) / kLseTolerance);
    } else if (!alike(x, y)) {
      return kInfinity;
    }
  }
  return worst;
}

}  // namespace trireme::cuda
