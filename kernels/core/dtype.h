#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/core/bfloat16.h"
#include "kernels/core/check.h"
#include "kernels/core/float16.h"

namespace trireme {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU8 };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 8;
    case DType::kF32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI64: return 8;
    case DType::kI32: return 4;
    case DType::kU8: return 1;
  }
  return 0;
}

/// The dtype's name in safetensors.
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "F64";
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kU8: return "U8";
  }
  return "?";
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<float16>() {
  return DType::kF16;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kU8;
}

/// Integer dtypes are for indices, bytes and counts: collectives move and sum them, and no operation computes with them.
constexpr bool is_integer(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kU8; }

/// The dtype of sums over `dtype`, of its statistics and of gradients of parameters: fp64 for fp64, otherwise fp32.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

/// Calls body(T{}) with T = float, double, bfloat16 or float16: selects a kernel template by the dtype of a tensor.
template <class Body>
void dispatch_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kBF16: return body(bfloat16{});
    case DType::kF16: return body(float16{});
    case DType::kF64: return body(double{});
    default: throw InternalError(concat("expected a floating-point tensor, got ", name_of(dtype)));
  }
}

}  // namespace trireme
