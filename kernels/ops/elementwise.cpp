#include "kernels/ops/elementwise.h"

#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/elementwise.h"

namespace trireme {
namespace {

void expect_equal_size(const char* operation, const Tensor& a, const Tensor& b) {
  TRIREME_CHECK(a.defined() && b.defined() && a.numel() == b.numel(), operation, ": different sizes: ", a.shape().str(), " and ", b.shape().str());
}

}  // namespace

void fill(Context& ctx, double value, const Tensor& out) {
  TRIREME_CHECK(out.defined(), "fill: out is undefined");
  Operation operation(ctx, "fill", {&out});
  const auto fill_host = [&]<class T>(T) { reference::fill(value, out.data<T>(), out.numel()); };
  if (is_integer(out.dtype()) && ctx.device != Device::kCuda) {
    if (ctx.device == Device::kMeta) return;
    if (out.dtype() == DType::kI64) return fill_host(int64_t{});
    return out.dtype() == DType::kI32 ? fill_host(int32_t{}) : fill_host(uint8_t{});
  }
  operation.run(
      out.dtype(), [&] { cuda::fill(ctx, value, out); }, FastCpu{[&] { cpu::fill(ctx, value, out); }, true}, fill_host);
}

void copy(Context& ctx, const Tensor& from, const Tensor& to) {
  expect_equal_size("copy", from, to);
  const bool same = from.dtype() == to.dtype();
  TRIREME_CHECK(same || !(is_integer(from.dtype()) || is_integer(to.dtype())), "copy: cannot convert ", name_of(from.dtype()), " to ",
                name_of(to.dtype()));
  Operation operation(ctx, "copy", {&from, &to});
  const auto convert = [&]<class From>(From) {
    dispatch_float(to.dtype(), [&]<class To>(To) { reference::copy(from.data<From>(), to.data<To>(), from.numel()); });
  };
  if (is_integer(from.dtype()) && ctx.device != Device::kCuda) {
    if (ctx.device != Device::kMeta && from.bytes() > 0) std::memmove(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
  } else if (to.dtype() != DType::kF64) {
    operation.run(
        from.dtype(), [&] { cuda::copy(ctx, from, to); }, FastCpu{[&] { cpu::copy(ctx, from, to); }, true}, convert);
  } else {
    operation.run(
        from.dtype(), [&] { cuda::copy(ctx, from, to); }, convert);
  }
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  expect_equal_size("add", a, out);
  expect_equal_size("add", b, out);
  Operation operation(ctx, "add", {&a, &b, &out});
  operation.run(
      out.dtype(), [&] { cuda::add(ctx, a, b, out); }, FastCpu{[&] { cpu::add(ctx, a, b, out); }, true},
      [&]<class T>(T) { reference::add(a.data<T>(), b.data<T>(), out.data<T>(), out.numel()); });
}

void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y) {
  Operation operation(ctx, "scale", {{"x", x, y.shape(), y.dtype()}, {"y", y, y.shape(), y.dtype()}});
  operation.run(
      y.dtype(), [&] { cuda::scale(ctx, x, factor, y); }, FastCpu{[&] { cpu::scale(ctx, x, factor, y); }, true},
      [&]<class T>(T) { reference::scale(x.data<T>(), factor, y.data<T>(), y.numel()); });
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& out) {
  expect_equal_size("accumulate", x, out);
  TRIREME_CHECK(size_of(x.dtype()) <= size_of(out.dtype()), "accumulate: cannot add ", name_of(x.dtype()), " to the narrower ", name_of(out.dtype()));
  Operation operation(ctx, "accumulate", {&x, &out, &out});
  const auto reference = [&]<class T>(T) {
    dispatch_float(out.dtype(), [&]<class Wide>(Wide) { reference::accumulate(x.data<T>(), out.data<Wide>(), x.numel()); });
  };
  if (x.dtype() != out.dtype() && out.dtype() != DType::kF32)
    return operation.run(
        x.dtype(), [&] { cuda::accumulate(ctx, x, out); }, reference);
  operation.run(
      x.dtype(), [&] { cuda::accumulate(ctx, x, out); }, FastCpu{[&] { cpu::accumulate(ctx, x, out); }, true}, reference);
}

void max_absolute(Context& ctx, const Tensor& x, const Tensor& largest) {
  TRIREME_CHECK(x.defined(), "max_absolute: x is undefined");
  Operation operation(ctx, "max_absolute", {{"x", x, x.shape(), x.dtype()}, {"largest", largest, {1}, DType::kF64}});
  if (x.numel() == 0) return;
  operation.run(
      x.dtype(), [&] { cuda::max_absolute(ctx, x, largest); },
      [&]<class T>(T) { reference::max_absolute(x.data<T>(), x.numel(), largest.data<double>()); });
}

void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y) {
  expect_equal_size("dropout", x, y);
  TRIREME_CHECK(mask.probability >= 0 && mask.probability < 1, "dropout: invalid probability ", mask.probability);
  Operation operation(ctx, "dropout", {&x, &y});
  operation.run(
      x.dtype(), [&] { cuda::dropout(ctx, x, mask, y); }, FastCpu{[&] { cpu::dropout(ctx, x, mask, y); }, true},
      [&]<class T>(T) { reference::dropout(x.data<T>(), mask, y.data<T>(), x.numel()); });
}

void fill_normal(Context& ctx, uint64_t key, double standard_deviation, int64_t global_columns, int64_t row_begin, int64_t column_begin,
                 const Tensor& out) {
  const bool matrix = out.shape().dims() == 2;
  TRIREME_CHECK(out.defined() && (matrix || out.shape().dims() == 1), "fill_normal: invalid shape of out: ", out.shape().str());
  const int64_t rows = matrix ? out.dim(0) : 1, columns = matrix ? out.dim(1) : out.dim(0);
  TRIREME_CHECK(row_begin >= 0 && column_begin >= 0 && column_begin + columns <= global_columns, "fill_normal: out ", out.shape().str(),
                " at column ", column_begin, " exceeds global columns ", global_columns);
  Operation operation(ctx, "fill_normal", {&out});
  operation.run(
      out.dtype(), [&] { cuda::fill_normal(ctx, key, standard_deviation, global_columns, row_begin, column_begin, out); },
      [&]<class T>(T) { reference::fill_normal(key, standard_deviation, global_columns, row_begin, column_begin, out.data<T>(), rows, columns); });
}

}  // namespace trireme
