#include "kernels/cpu/columns.h"

#include <cstring>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns) {
  const int64_t element = size_of(from.dtype()), from_stride = from.dim(1) * element, to_stride = to.dim(1) * element;
  const auto* const source = static_cast<const unsigned char*>(from.raw()) + from_column * element;
  auto* const target = static_cast<unsigned char*>(to.raw()) + to_column * element;
  const auto bytes = static_cast<size_t>(columns * element);
  parallel_for(ctx, from.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) std::memcpy(target + m * to_stride, source + m * from_stride, bytes);
  });
}

void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first) {
  const int64_t columns = x.dim(1), stride = to.dim(1);
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const T* const source = x.data<T>();
    T* const target = to.data<T>() + first;
    const RangeKernel<Add<T>> add = typed_kernels<T>(ctx).add;
    parallel_for(ctx, x.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) add({target + m * stride, source + m * columns, target + m * stride}, 0, columns);
    });
  });
}

}  // namespace trireme::cpu
