#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {
namespace {

void copy_bytes(const Context& ctx, const Tensor& from, const Tensor& to) {
  const auto* const source = static_cast<const unsigned char*>(from.raw());
  auto* const target = static_cast<unsigned char*>(to.raw());
  if (source == target) return;
  parallel_for(ctx, from.bytes(), kElementsPerThread * size_of(DType::kF32),
               [=](int64_t begin, int64_t end) { std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin)); });
}

}  // namespace

void fill(Context& ctx, double value, const Tensor& out) {
  dispatch_type(out.dtype(), [&]<class T>(T) {
    T* const to = out.data<T>();
    const T x = static_cast<T>(value);
    parallel_for(ctx, out.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, x); });
  });
}

void copy(Context& ctx, const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) return copy_bytes(ctx, from, to);
  dispatch_type(from.dtype(), [&]<class From>(From) {
    dispatch_type(to.dtype(), [&]<class To>(To) {
      const Convert<From, To> arguments{.from = from.data<From>(), .to = to.data<To>()};
      run_kernel(ctx, typed_kernels<From>(ctx).template to<To>(), arguments, from.numel(), kElementsPerThread);
    });
  });
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_type(out.dtype(), [&]<class T>(T) {
    const Add<T> arguments{.a = a.data<T>(), .b = b.data<T>(), .out = out.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).add, arguments, out.numel(), kElementsPerThread);
  });
}

void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y) {
  dispatch_type(y.dtype(), [&]<class T>(T) {
    const Scale<T> arguments{.x = x.data<T>(), .factor = static_cast<float>(factor), .y = y.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).scale, arguments, y.numel(), kElementsPerThread);
  });
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& out) {
  if (x.dtype() == out.dtype()) return cpu::add(ctx, out, x, out);
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const Accumulate<T> arguments{.x = x.data<T>(), .out = out.data<float>()};
    run_kernel(ctx, typed_kernels<T>(ctx).accumulate, arguments, out.numel(), kElementsPerThread);
  });
}

void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y) {
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const Dropout<T> arguments{.x = x.data<T>(),
                               .key = mask.key,
                               .first_index = mask.first_index,
                               .step = mask.step,
                               // u >= p in double is a comparison of integers: u is a multiple of 2^-32, and scaling p by a power of two is exact.
                               .threshold = static_cast<uint64_t>(std::ceil(std::ldexp(mask.probability, 32))),
                               .scale = static_cast<float>(1.0 / (1.0 - mask.probability)),
                               .y = y.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).dropout, arguments, x.numel(), kElementsPerThread / 8);
  });
}

}  // namespace trireme::cpu
